//! `pandastack quota`: quotas of a workspace.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::{Quota, QuotaReport};

use super::runtime::with_client;
use crate::failure::Failure;
use crate::output::Output;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show quotas and current usage
    Show,
    /// Change quotas; use `none` to remove a limit; needs an operator key
    Set(Limits),
}

/// Quotas to change.
#[derive(Debug, clap::Args)]
pub struct Limits {
    /// Maximum number of sandboxes
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    sandboxes: Option<Limit>,
    /// Maximum total vCPUs of all sandboxes
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    cpu: Option<Limit>,
    /// Maximum total memory of all sandboxes, in MiB
    #[arg(long = "memory", alias = "memory-mb", value_name = "MIB", value_parser = limit)]
    memory_mb: Option<Limit>,
    /// Maximum total disk space of all snapshots, in MiB
    #[arg(long, value_name = "MIB", value_parser = limit)]
    snapshot_mb: Option<Limit>,
    /// Maximum API requests per second
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    requests_per_second: Option<Limit>,
}

/// A limit; `None` for no limit.
#[derive(Debug, Clone, Copy)]
struct Limit(Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        number => {
            number.parse().map(|number| Limit(Some(number))).map_err(|_| "expected a number or `none`".into())
        }
    }
}

impl Limits {
    /// Whether no change is requested.
    pub fn is_empty(&self) -> bool {
        let all = [self.sandboxes, self.cpu, self.memory_mb, self.snapshot_mb, self.requests_per_second];
        all.iter().all(Option::is_none)
    }

    /// A quota with these limits changed.
    pub fn apply(self, before: Quota) -> Quota {
        let set = |new: Option<Limit>, old| new.map_or(old, |Limit(new)| new);
        let rate = before.requests_per_second.map(u64::from);
        let rate = set(self.requests_per_second, rate).map(|rate| u32::try_from(rate).unwrap_or(u32::MAX));
        Quota {
            sandboxes: set(self.sandboxes, before.sandboxes),
            cpu: set(self.cpu, before.cpu),
            memory_mb: set(self.memory_mb, before.memory_mb),
            snapshot_mb: set(self.snapshot_mb, before.snapshot_mb),
            requests_per_second: rate,
        }
    }
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            let report = client.quota().await?;
            let report = match self {
                Command::Show => report,
                Command::Set(limits) if limits.is_empty() => {
                    let failure = Failure::new("no quotas given");
                    return Err(failure.hint("`pandastack quota set --help` lists the quotas").into());
                }
                Command::Set(limits) => client.set_quota(&limits.apply(report.quota)).await?,
            };
            output.value(&report, describe)?;
            let listed = client.list_sandboxes().await?.len() as u64;
            if let Some(note) = difference(report.used.sandboxes, listed) {
                output.note(&note);
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Why the quota counts more machines than `sandbox list` shows.
fn difference(counted: u64, listed: u64) -> Option<String> {
    let others = counted.checked_sub(listed).filter(|others| *others > 0)?;
    Some(format!(
        "{others} of {counted} sandboxes are machines of apps, functions, databases and builds, which \
         `pandastack sandbox list` does not show"
    ))
}

/// The quotas and the usage as a table.
pub fn describe(report: &QuotaReport) -> String {
    let QuotaReport { quota, used, .. } = report;
    let line = |name: &str, used: Option<u64>, limit: Option<u64>| {
        let used = used.map_or_else(|| "-".to_owned(), |used| used.to_string());
        let limit = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        format!("{name:<20} {used:>10} {limit:>10}")
    };
    [
        format!("{:<20} {:>10} {:>10}", "QUOTA", "USED", "LIMIT"),
        line("sandboxes", Some(used.sandboxes), quota.sandboxes),
        line("cpu", Some(used.cpu), quota.cpu),
        line("memory_mb", Some(used.memory_mb), quota.memory_mb),
        line("snapshot_mb", Some(used.snapshot_mb), quota.snapshot_mb),
        line("requests_per_second", None, quota.requests_per_second.map(u64::from)),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_explains_sandboxes_that_are_not_listed() {
        assert_eq!(difference(2, 2), None);
        assert_eq!(difference(1, 2), None, "one was created in between");
        assert!(
            difference(5, 2).is_some_and(|note| note.starts_with("3 of 5 sandboxes are machines of apps"))
        );
    }

    #[test]
    fn omitted_limits_are_kept_and_none_removes_a_limit() {
        let before = Quota { cpu: Some(4), sandboxes: Some(9), ..Quota::default() };
        let limits = Limits {
            sandboxes: Some(Limit(None)),
            cpu: None,
            memory_mb: Some(Limit(Some(512))),
            snapshot_mb: None,
            requests_per_second: Some(Limit(Some(u64::MAX))),
        };
        let after = limits.apply(before);
        assert_eq!((after.sandboxes, after.cpu, after.memory_mb), (None, Some(4), Some(512)));
        assert_eq!(after.requests_per_second, Some(u32::MAX));
    }
}
