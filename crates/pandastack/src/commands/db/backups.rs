//! `pandastack db backups`, `restore` and `drill`: backups of databases.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use pandastack_client::Client;
use pandastack_types::api::{CloneDatabase, DatabaseBackups, DatabaseStatus};

use super::describe::details as database_details;
use super::resolve::resolve;
use crate::failure::Failure;
use crate::output::{Output, fields, size};
use crate::progress::Progress;

/// Interval between checks of a restore.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of a restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Database to restore: ID, unique ID prefix or label
    database: String,
    /// Label of the new database
    label: Option<String>,
    /// Point in time: 2026-01-31T12:00:00Z, or a duration before now, such as 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    at: Timestamp,
    /// Return without waiting for the restore to finish
    #[arg(long)]
    no_wait: bool,
}

fn point_in_time(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let ago: SignedDuration = text.parse().map_err(|_| {
        "expected a time such as 2026-01-31T12:00:00Z, or a duration such as 10m or 2h".to_owned()
    })?;
    Timestamp::now().checked_sub(ago.abs()).map_err(|_| "the time is out of range".to_owned())
}

/// Restores a database and waits until it is ready.
pub async fn restore(client: &Client, args: RestoreArgs, output: Output) -> Result<()> {
    let id = resolve(client, &args.database).await?;
    let request = CloneDatabase { label: args.label, target_time: Some(args.at), size: None };
    let mut database = client.branch_database(&id, &request).await?;
    let progress = Progress::start("Restoring");
    while database.status == DatabaseStatus::Provisioning && !args.no_wait {
        tokio::time::sleep(POLL_INTERVAL).await;
        database = client.get_database(&database.id).await?;
    }
    drop(progress);
    if database.status == DatabaseStatus::Failed {
        let why = database.error.unwrap_or_else(|| "no reason was reported".to_owned());
        let hint = format!("run `pandastack db rm {}` to delete the incomplete database", database.id);
        return Err(Failure::new(format!("cannot restore the database: {why}")).hint(hint).into());
    }
    output.value(&database, database_details)
}

/// Tests a restore; the exit code is 0 if it succeeded.
pub async fn drill(client: &Client, database: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, database).await?;
    let progress = Progress::start("Testing the restore");
    let drill = client.drill_database(&id).await?;
    drop(progress);
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
