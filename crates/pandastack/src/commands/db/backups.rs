//! Backups of databases: what there is, and restoring from it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use pandastack_client::Client;
use pandastack_types::api::{CloneDatabase, DatabaseBackups, DatabaseStatus};

use super::describe::described as database_described;
use super::resolve;
use crate::failure::Failure;
use crate::output::{Output, fields, size};
use crate::progress::Progress;

/// Between two looks at a restore.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Arguments of a restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Database whose backups they are
    database: String,
    /// Name of the new database
    label: Option<String>,
    /// The instant: 2026-01-31T12:00:00Z, or how long ago, such as 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = instant)]
    at: Timestamp,
    /// Do not wait until it is there
    #[arg(long)]
    no_wait: bool,
}

fn instant(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let ago: SignedDuration = text.parse().map_err(|_| "give 2026-01-31T12:00:00Z, 10m or 2h".to_owned())?;
    Timestamp::now().checked_sub(ago.abs()).map_err(|_| "that is too long ago".to_owned())
}

/// Restores, and waits for it.
pub async fn restore(client: &Client, args: RestoreArgs, output: Output) -> Result<()> {
    let id = resolve(client, &args.database).await?;
    let request = CloneDatabase { label: args.label, target_time: Some(args.at), size: None };
    let mut database = client.branch_database(&id, &request).await?;
    let progress = Progress::start("Restoring");
    while database.status == DatabaseStatus::Provisioning && !args.no_wait {
        tokio::time::sleep(LOOK_EVERY).await;
        database = client.get_database(&database.id).await?;
    }
    drop(progress);
    if database.status == DatabaseStatus::Failed {
        let why = database.error.unwrap_or_else(|| "the restore failed".to_owned());
        let hint = format!("delete what is left with `pandastack db rm {}`", database.id);
        return Err(Failure::new(why).hint(hint).into());
    }
    output.value(&database, database_described)
}

/// Tries a restore; the exit code tells how it went.
pub async fn drill(client: &Client, database: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, database).await?;
    let progress = Progress::start("Restoring, to see whether it works");
    let drill = client.drill_database(&id).await?;
    drop(progress);
    output.value(&drill, |drill| match &drill.error {
        None => format!("restored and sound, in {:.1} s", Duration::from_millis(drill.took_ms).as_secs_f64()),
        Some(error) => format!("it cannot be restored: {error}"),
    })?;
    Ok(if drill.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Backups as people read them.
pub fn described(backups: &DatabaseBackups) -> String {
    let time = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}"));
    let mut lines = vec![
        ("healthy", if backups.healthy { "yes" } else { "no" }.to_owned()),
        ("restorable from", time(backups.earliest_restorable)),
        ("restorable to", time(backups.latest_restorable)),
        ("archived up to", backups.last_archived_wal.clone().unwrap_or_else(|| "-".to_owned())),
        ("behind", size(backups.lag_bytes)),
        ("kept for", format!("{} days", backups.retention_days)),
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
