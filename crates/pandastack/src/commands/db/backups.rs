//! `pandastack db backups`, `restore` and `drill`: backups of databases.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use pandastack_client::Client;
use pandastack_types::api::{CloneDatabase, Database, DatabaseBackups, DatabaseStatus, RestorePoint};

use super::describe::details as database_details;
use super::resolve::resolve;
use crate::commands::wait::{WaitArgs, shown};
use crate::failure::Failure;
use crate::output::{Output, fields, size};
use crate::progress::Progress;

/// Interval between checks of a restore.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of a restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Database to restore: ID, unique ID prefix, name or label
    database: String,
    /// Label of the new database
    label: Option<String>,
    /// Name of the new database, unique in the workspace
    #[arg(long)]
    name: Option<String>,
    /// Point in time: 2026-01-31T12:00:00Z, a duration before now such as 10m or 2h, or `latest` (the same as
    /// `now`)
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    at: RestorePoint,
    #[command(flatten)]
    wait: WaitArgs,
}

fn point_in_time(text: &str) -> Result<RestorePoint, String> {
    if let Ok(point) = text.parse::<RestorePoint>() {
        return Ok(point);
    }
    let ago: SignedDuration = text.parse().map_err(|_| {
        "expected a time such as 2026-01-31T12:00:00Z, a duration such as 10m or 2h, `now` or `latest`"
            .to_owned()
    })?;
    let at = Timestamp::now().checked_sub(ago.abs());
    at.map(RestorePoint::At).map_err(|_| "the time is out of range".to_owned())
}

/// Restores a database and waits until it is ready.
pub async fn restore(client: &Client, args: RestoreArgs, output: Output) -> Result<()> {
    let id = resolve(client, &args.database).await?;
    let request =
        CloneDatabase { name: args.name, label: args.label, target_time: Some(args.at), size: None };
    let begin = async { Ok(client.branch_database(&id, &request).await?) };
    let background = "if the restore has started, it continues; `pandastack db list` shows it";
    let mut database = shown("Starting the restore", background, begin).await?;
    if args.wait.waits() {
        let new = database.id.clone();
        let background = format!(
            "the restore continues as database {new}; to see its state, run `pandastack db get {new}`"
        );
        database = args.wait.until(&background, restored(client, database)).await?;
    }
    if database.status == DatabaseStatus::Failed {
        let why = database.error.unwrap_or_else(|| "no reason was reported".to_owned());
        let hint = format!("run `pandastack db rm {}` to delete the incomplete database", database.id);
        return Err(Failure::new(format!("cannot restore the database: {why}")).hint(hint).into());
    }
    output.value(&database, database_details)
}

/// Waits for the end of a restore and shows its steps.
async fn restored(client: &Client, mut database: Database) -> Result<Database> {
    let progress = Progress::start(format!("Restoring database {}", database.id));
    let mut shown = None;
    while database.status == DatabaseStatus::Provisioning {
        if let Some(step) = database.step.as_ref().filter(|step| shown.as_ref() != Some(*step)) {
            progress.step(format!("Restoring: {step}"));
            shown = Some(step.clone());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        database = client.get_database(&database.id).await?;
    }
    Ok(database)
}

/// Tests a restore; the exit code is 0 if it succeeded.
pub async fn drill(client: &Client, database: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, database).await?;
    let test = async { Ok(client.drill_database(&id).await?) };
    let background = format!("the test continues; `pandastack db backups {id}` shows its result");
    let drill = shown("Testing the restore", &background, test).await?;
    output.value(&drill, |drill| match &drill.error {
        None => format!("restore succeeded in {:.1} s", Duration::from_millis(drill.took_ms).as_secs_f64()),
        Some(error) => format!("restore failed: {error}"),
    })?;
    Ok(if drill.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Formats the state of the backups.
pub fn details(backups: &DatabaseBackups) -> String {
    let time = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}"));
    let mut lines = vec![
        ("healthy", if backups.healthy { "yes" } else { "no" }.to_owned()),
        ("restorable from", time(backups.earliest_restorable)),
        ("restorable to", time(backups.latest_restorable)),
        ("archived up to", backups.last_archived_wal.clone().unwrap_or_else(|| "-".to_owned())),
        ("archive lag", size(backups.lag_bytes)),
        ("retention", format!("{} days", backups.retention_days)),
    ];
    let bases = backups.base_backups.iter();
    lines.extend(
        bases.map(|base| {
            ("base backup", format!("{} {}", time(Some(base.finished_at)), size(base.size_bytes)))
        }),
    );
    if let Some(drill) = &backups.last_drill {
        let outcome = drill.error.as_deref().unwrap_or("ok");
        lines.push(("last drill", format!("{} {outcome}", time(Some(drill.at)))));
    }
    lines.extend(backups.failing_since.map(|since| ("failing since", time(Some(since)))));
    lines.extend(backups.error.clone().map(|error| ("error", error)));
    fields(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_has_four_forms() {
        let at = "2026-01-31T12:00:00Z".parse().unwrap();
        assert_eq!(point_in_time("2026-01-31T12:00:00Z"), Ok(RestorePoint::At(at)));
        assert_eq!(point_in_time("latest"), Ok(RestorePoint::Latest));
        assert_eq!(point_in_time("now"), Ok(RestorePoint::Latest));
        let Ok(RestorePoint::At(at)) = point_in_time("10m") else { panic!("10m") };
        let ago = Timestamp::now().duration_since(at).as_secs();
        assert!((600..605).contains(&ago), "{ago}");
        assert!(point_in_time("yesterday").is_err());
    }
}
