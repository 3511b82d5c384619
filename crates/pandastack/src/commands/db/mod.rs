//! `pandastack db`: managed databases.

mod backups;
mod create;
mod describe;
mod psql;
mod query;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::DatabaseId;
use pandastack_types::api::{CloneDatabase, CreateDatabase, Database, PatchDatabase};

use crate::failure::Failure;
use crate::output::{Output, age};
use crate::progress::Progress;
use describe::{described, listed};

/// Its commands. A database is named by its id, the beginning of it, or its label.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a database; it takes queries when the command ends
    Create {
        /// Name for people
        label: Option<String>,
        /// Memory: 1g, 2g, 4g, 8g or 16g
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
        /// Virtual processors
        #[arg(long, value_name = "COUNT")]
        cpu: Option<u32>,
        /// Never let it sleep
        #[arg(long)]
        always_on: bool,
        /// Refuse to delete it until that is taken back
        #[arg(long)]
        protected: bool,
    },
    /// List databases
    #[command(visible_alias = "ls")]
    List,
    /// Show a database, with how to connect to it
    Get {
        /// Database
        database: String,
    },
    /// Print the connection string
    Url {
        /// Database
        database: String,
        /// Through the pooler
        #[arg(long)]
        pooled: bool,
    },
    /// Open a shell of this machine's psql
    Psql(psql::Args),
    /// Run one statement and print its rows
    Query(query::Args),
    /// Give a database a new password
    ResetPassword {
        /// Database
        database: String,
    },
    /// Copy a database as it is now, while it runs
    #[command(visible_alias = "clone")]
    Branch {
        /// Database to copy
        database: String,
        /// Name of the copy
        label: Option<String>,
    },
    /// Restore a database from its backups as it was at an instant, as a new one
    Restore(backups::RestoreArgs),
    /// Show what of a database can be restored, and how its backup goes
    Backups {
        /// Database
        database: String,
    },
    /// Take a base backup now; daily ones come by themselves
    Backup {
        /// Database
        database: String,
    },
    /// Prove the backups: restore the latest state, check every table and index, and delete it
    Drill {
        /// Database
        database: String,
    },
    /// Let a copy restored from the backups take over from a database whose host does not answer
    Failover {
        /// Database
        database: String,
    },
    /// Change a database
    Set {
        /// Database
        database: String,
        /// Name for people
        #[arg(long)]
        label: Option<String>,
        /// Whether it never sleeps
        #[arg(long, value_name = "BOOL")]
        always_on: Option<bool>,
        /// Whether deleting it is refused
        #[arg(long, value_name = "BOOL")]
        protected: Option<bool>,
        /// Room for data; it only grows
        #[arg(long, value_name = "MIB")]
        storage_mb: Option<u64>,
        /// Memory: 1g, 2g, 4g, 8g or 16g; sessions end, new ones wait until it is done
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// Put a database to sleep; the next connection wakes it
    Pause {
        /// Database
        database: String,
    },
    /// Wake a database
    Wake {
        /// Database
        database: String,
    },
    /// Show what a database does
    Stats {
        /// Database
        database: String,
    },
    /// Print the end of a database's log
    Logs {
        /// Database
        database: String,
    },
    /// Delete databases and everything in them
    Rm {
        /// Databases
        #[arg(required = true)]
        databases: Vec<String>,
    },
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move {
            match self {
                Command::Psql(args) => return psql::run(&client, args).await,
                Command::Query(args) => query::run(&client, args, output).await?,
                Command::List => list(&client, output).await?,
                Command::Restore(args) => backups::restore(&client, args, output).await?,
                Command::Rm { databases } => {
                    let delete = async |text: &str| {
                        let id = resolve(&client, text).await?;
                        client.delete_database(&id).await?;
                        Ok(id.to_string())
                    };
                    return super::each(&databases, output, delete).await;
                }
                Command::Drill { database } => return backups::drill(&client, &database, output).await,
                other => other.change(&client, output).await?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn change(self, client: &Client, output: Output) -> Result<()> {
        match self {
            Command::Create { label, size, cpu, always_on, protected } => {
                let (always_on, protected) = (Some(always_on), Some(protected));
                let request = CreateDatabase { label, size, cpu, always_on, protected, memory_mb: None };
                output.value(&create::create(client, &request).await?, described)
            }
            Command::Get { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.get_database(&id).await?, described)
            }
            Command::Branch { database, label } => {
                let id = resolve(client, &database).await?;
                let request = CloneDatabase { label, ..CloneDatabase::default() };
                output.value(&client.branch_database(&id, &request).await?, described)
            }
            Command::Failover { database } => {
                let id = resolve(client, &database).await?;
                let progress = Progress::start("Restoring elsewhere");
                let moved = client.fail_over_database(&id).await?;
                drop(progress);
                output.value(&moved, described)
            }
            Command::Set { database, label, always_on, protected, storage_mb, size } => {
                let id = resolve(client, &database).await?;
                let request = PatchDatabase { label, always_on, protected, storage_mb, size };
                output.value(&client.change_database(&id, &request).await?, described)
            }
            other => other.look(client, output).await,
        }
    }

    async fn look(self, client: &Client, output: Output) -> Result<()> {
        match self {
            Command::Url { database, pooled } => {
                let id = resolve(client, &database).await?;
                let connection = client.database_connection(&id).await?;
                output.value(&connection, |c| {
                    if pooled { c.pooled_url.clone() } else { c.connection_url.clone() }
                })
            }
            Command::ResetPassword { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.reset_database_credentials(&id).await?, described)
            }
            Command::Pause { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.pause_database(&id).await?, |done| done.status.as_str().to_owned())
            }
            Command::Wake { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.wake_database(&id).await?, |done| done.status.as_str().to_owned())
            }
            Command::Backups { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.database_backups(&id).await?, backups::described)
            }
            Command::Backup { database } => {
                let id = resolve(client, &database).await?;
                let progress = Progress::start("Backing up");
                let base = client.back_up_database(&id).await?;
                drop(progress);
                output.value(&base, |base| base.name.clone())
            }
            Command::Stats { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.database_stats(&id).await?, describe::stats)
            }
            Command::Logs { database } => {
                let id = resolve(client, &database).await?;
                output.raw(client.database_logs(&id).await?.as_bytes())
            }
            _ => Ok(()),
        }
    }
}

async fn list(client: &Client, output: Output) -> Result<()> {
    let databases = client.list_databases().await?;
    let now = Timestamp::now();
    let columns = ["ID", "LABEL", "STATUS", "SIZE", "AGE"];
    output.table(&databases, columns, |database| listed(database, age(database.created_at, now)))
}

/// The database that a person means.
pub(crate) async fn resolve(client: &Client, text: &str) -> Result<DatabaseId> {
    let found = client.list_databases().await?;
    if let Some(exact) = found.iter().find(|database| database.id.as_str() == text) {
        return Ok(exact.id.clone());
    }
    let is_meant = |database: &&Database| {
        database.id.as_str().starts_with(text) || database.label.as_deref() == Some(text)
    };
    let meant: Vec<_> = found.iter().filter(is_meant).collect();
    match meant.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => {
            let failure = Failure::new(format!("there is no database `{text}`"));
            Err(failure.hint("`pandastack db list` shows them").into())
        }
        several => {
            let failure = Failure::new(format!("`{text}` means {} databases", several.len()));
            Err(failure.hint("name it by its whole id: `pandastack db list`").into())
        }
    }
}
