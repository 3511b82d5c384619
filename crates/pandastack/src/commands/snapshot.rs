//! `pandastack snapshot`: snapshots of sandboxes.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::api::Snapshot;
use pandastack_types::{ID_CHARS, SnapshotId};

use super::each::each;
use super::runtime::with_client;
use super::sandbox::resolve::resolve;
use crate::failure::Failure;
use crate::output::{Output, age, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List snapshots, newest first
    #[command(visible_alias = "ls")]
    List {
        /// List only snapshots of this sandbox: ID, unique ID prefix or name
        #[arg(long, value_name = "ID")]
        sandbox: Option<String>,
    },
    /// Delete snapshots
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Snapshot IDs, unique ID prefixes or names
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Finds a snapshot by its id, its name or a unique id prefix.
pub(super) async fn find(client: &Client, text: &str) -> Result<SnapshotId> {
    if let Some(id) = text.parse().ok().filter(|_| text.len() == ID_CHARS) {
        return Ok(id);
    }
    let snapshots = client.list_snapshots(None).await?;
    let exact = |one: &&Snapshot| one.name.as_deref() == Some(text) || one.id.as_str() == text;
    let begins = |one: &&Snapshot| one.id.as_str().starts_with(text);
    let mut found: Vec<_> = snapshots.iter().filter(exact).collect();
    if found.is_empty() {
        found = snapshots.iter().filter(begins).collect();
    }
    match found.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => {
            let failure = Failure::new(format!("snapshot `{text}` not found"));
            Err(failure.hint("run `pandastack snapshot list` to see all IDs and names").into())
        }
        [first, second, ..] => {
            let failure =
                Failure::new(format!("snapshot `{text}` is ambiguous: `{}` and `{}`", first.id, second.id));
            Err(failure.hint("use more characters of the ID").into())
        }
    }
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
                        let id = find(&client, text).await?;
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
