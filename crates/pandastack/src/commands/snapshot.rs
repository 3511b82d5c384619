//! `pandastack snapshot`: snapshots of sandboxes.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::SnapshotId;

use super::each::each;
use super::runtime::with_client;
use super::sandbox::resolve::resolve;
use crate::output::{Output, age, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List snapshots, newest first
    #[command(visible_alias = "ls")]
    List {
        /// List only snapshots of this sandbox: ID or unique prefix
        #[arg(long)]
        sandbox: Option<String>,
    },
    /// Delete snapshots
    Rm {
        /// Snapshot IDs
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::List { sandbox } => {
                    let sandbox = match sandbox {
                        Some(text) => Some(resolve(&client, &text).await?),
                        None => None,
                    };
                    let snapshots = client.list_snapshots(sandbox.as_ref()).await?;
                    let now = Timestamp::now();
                    let columns = ["ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "AGE"];
                    output.table(&snapshots, columns, |snapshot| {
                        [
                            snapshot.id.to_string(),
                            snapshot.name.clone().unwrap_or_else(|| "-".to_owned()),
                            snapshot.sandbox_id.to_string(),
                            snapshot.template.clone(),
                            size(snapshot.size_bytes),
                            age(snapshot.created_at, now),
                        ]
                    })?;
                }
                Command::Rm { ids } => {
                    let delete = async |text: &str| {
                        let id: SnapshotId = text.parse()?;
                        client.delete_snapshot(&id).await?;
                        Ok(id.to_string())
                    };
                    return each(&ids, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
