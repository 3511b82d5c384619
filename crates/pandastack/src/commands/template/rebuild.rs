//! `pandastack template rebuild`: builds a version again, now or on a schedule.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use jiff::SignedDuration;
use pandastack_client::Client;
use pandastack_types::api::{
    Build, BuildStatus, CreateSchedule, PackageChange, PatchSchedule, Schedule, ScheduleTarget,
    ScheduleTiming, TemplateChanges, TemplateTarget,
};

use super::build::{self, Watched};
use crate::commands::token::duration;
use crate::commands::wait::WaitArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template name, with a tag to rebuild another version than `latest`
    #[arg(value_name = "NAME[:TAG]")]
    name: String,
    /// Rebuild it at this interval from now on, such as 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = duration, group = "when")]
    every: Option<SignedDuration>,
    /// Rebuild it at the times of this cron expression, such as @daily
    #[arg(long, value_name = "EXPRESSION", group = "when")]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    timezone: Option<String>,
    /// Do not rebuild it on a schedule any more
    #[arg(long, group = "when")]
    off: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    if args.off {
        return stop(client, &args.name, output).await;
    }
    let every_seconds = args.every.map(|every| u64::try_from(every.as_secs()).unwrap_or_default());
    let timing = ScheduleTiming { cron: args.cron, timezone: args.timezone, every_seconds, at: None };
    match timing == ScheduleTiming::default() {
        true => now(client, &args.name, args.wait, output).await,
        false => schedule(client, &args.name, timing, output).await,
    }
}

async fn now(client: &Client, name: &str, wait: WaitArgs, output: Output) -> Result<ExitCode> {
    let began = Instant::now();
    let build = client.rebuild_template(name).await?;
    if !wait.waits() {
        output.value(&build, |build| build.id.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Watched::Ended(ended) = build::watch(client, &build.id, name, wait).await? else {
        return Ok(build::cancelled());
    };
    if ended.status != BuildStatus::Done {
        let why = ended.error.as_deref().unwrap_or("no reason was reported");
        return Err(Failure::new(format!("cannot rebuild template `{name}`: {why}"))
            .hint(format!("run `pandastack template logs {}` to see its log", ended.id))
            .into());
    }
    output.value::<Build>(&ended, |build| {
        let mut lines = vec![format!("template {name} is rebuilt ({:.1} s)", began.elapsed().as_secs_f64())];
        lines.extend(build.changes.iter().flat_map(details));
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a rebuild changed, in lines.
pub(super) fn details(changes: &TemplateChanges) -> Vec<String> {
    let digest = |digest: &Option<String>| digest.clone().unwrap_or_else(|| "unknown".to_owned());
    let (before, after) = (digest(&changes.base_before), digest(&changes.base_after));
    let mut lines = vec![format!("changes: {changes}")];
    if before != after {
        lines.push(format!("  base {}: {before} -> {after}", changes.base));
    }
    lines.extend(changes.packages.iter().flatten().map(package));
    lines
}

fn package(change: &PackageChange) -> String {
    let PackageChange { name, before, after } = change;
    match (before, after) {
        (Some(before), Some(after)) => format!("  {name} {before} -> {after}"),
        (Some(before), None) => format!("  {name} {before} removed"),
        (None, after) => format!("  {name} {} added", after.as_deref().unwrap_or_default()),
    }
}

/// Creates the schedule of a template, or changes its times.
async fn schedule(client: &Client, name: &str, timing: ScheduleTiming, output: Output) -> Result<ExitCode> {
    let saved = match schedules(client, name).await?.into_iter().next() {
        Some(found) => {
            let change = PatchSchedule { timing, paused: Some(false), ..PatchSchedule::default() };
            client.patch_schedule(&found.id, &change).await?
        }
        None => {
            let target = ScheduleTarget::Template(TemplateTarget { template: name.to_owned() });
            let request = CreateSchedule {
                name: format!("rebuild {name}"),
                timing,
                target: Some(target),
                ..CreateSchedule::default()
            };
            client.create_schedule(&request).await?
        }
    };
    output.value(&saved, |saved: &Schedule| {
        let next = saved.next_run_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
        format!("template {name} is rebuilt by schedule {}, next at {next}", saved.id)
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn stop(client: &Client, name: &str, output: Output) -> Result<ExitCode> {
    let found = schedules(client, name).await?;
    if found.is_empty() {
        return Err(Failure::new(format!("template `{name}` is not rebuilt on a schedule"))
            .hint("run `pandastack schedule list` to see all schedules")
            .into());
    }
    for schedule in &found {
        client.delete_schedule(&schedule.id).await?;
    }
    output.value(&found, |_| format!("template {name} is no longer rebuilt on a schedule"))?;
    Ok(ExitCode::SUCCESS)
}

/// Schedules that rebuild a template.
async fn schedules(client: &Client, name: &str) -> Result<Vec<Schedule>> {
    let mut all = client.list_schedules().await?;
    all.retain(|one| matches!(&one.target, ScheduleTarget::Template(target) if target.template == name));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use pandastack_types::BuildId;

    use super::*;

    #[test]
    fn changed_packages_are_listed() {
        let package = |name: &str, before: Option<&str>, after: Option<&str>| PackageChange {
            name: name.to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        let changes = TemplateChanges {
            previous_build_id: BuildId::random(),
            base: "debian:12".to_owned(),
            base_before: None,
            base_after: Some("sha256:2".to_owned()),
            size_bytes_before: 0,
            size_bytes_after: 0,
            packages: Some(vec![
                package("bash", Some("1"), Some("2")),
                package("curl", None, Some("3")),
                package("dash", Some("4"), None),
            ]),
            packages_omitted: 0,
        };
        let expect =
            ["  base debian:12: unknown -> sha256:2", "  bash 1 -> 2", "  curl 3 added", "  dash 4 removed"];
        assert_eq!(details(&changes)[1..], expect);
    }
}
