//! `pandastack db`: manages databases.

mod backups;
mod create;
mod describe;
mod psql;
mod query;
pub mod resolve;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::DatabaseId;
use pandastack_types::api::{CloneDatabase, CreateDatabase, PatchDatabase};

use super::each::{each, show_each};
use super::runtime::with_client;
use super::wait::shown;
use crate::output::{Output, age};
use describe::{details, row};
use resolve::resolve;

/// Subcommands. A database is named by its id, a unique id prefix, its name or its label.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a database and wait until it accepts connections
    Create {
        /// Label, which lists show if there is no name; need not be unique
        label: Option<String>,
        /// Name to use instead of the ID; must be unique in the workspace
        #[arg(long)]
        name: Option<String>,
        /// Memory size: 1g, 2g, 4g, 8g or 16g
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
        /// Number of vCPUs
        #[arg(long, value_name = "COUNT")]
        cpu: Option<u32>,
        /// Sleep after 30 idle days instead of 300 idle seconds
        #[arg(long)]
        always_on: bool,
        /// Protect the database from deletion; undo with `pandastack db update ID --protected false`
        #[arg(long)]
        protected: bool,
    },
    /// List databases
    #[command(visible_alias = "ls")]
    List,
    /// Show databases and their connection strings
    Get {
        /// Database IDs, unique ID prefixes, names or labels
        #[arg(required = true, value_name = "DATABASE")]
        databases: Vec<String>,
    },
    /// Print the connection string
    Url {
        /// Database ID, unique ID prefix, name or label
        database: String,
        /// Connect through the connection pooler
        #[arg(long)]
        pooled: bool,
    },
    /// Connect with the local psql client
    Psql(psql::Args),
    /// Run an SQL statement and print its rows
    Query(query::Args),
    /// Generate a new password
    ResetPassword {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Branch a database: create a copy of its current state
    #[command(visible_alias = "clone")]
    Branch {
        /// Database to branch: ID, unique ID prefix, name or label
        database: String,
        /// Label of the branch
        label: Option<String>,
        /// Name of the branch, unique in the workspace
        #[arg(long)]
        name: Option<String>,
    },
    /// Restore a database to a point in time, as a new database
    Restore(backups::RestoreArgs),
    /// Show backups and the restorable period
    Backups {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Take a base backup now, in addition to the daily one
    Backup {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Test the backups: restore a copy, check all its tables and indexes, and delete it
    Drill {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Fail over a database whose host is unreachable to a copy restored from backups
    Failover {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Change the settings of a database
    #[command(name = "update", visible_alias = "set")]
    Set {
        /// Database ID, unique ID prefix, name or label
        database: String,
        /// Label, which need not be unique
        #[arg(long)]
        label: Option<String>,
        /// Sleep after 30 idle days instead of 300 idle seconds
        #[arg(long, value_name = "true|false")]
        always_on: Option<bool>,
        /// Protect the database from deletion
        #[arg(long, value_name = "true|false")]
        protected: Option<bool>,
        /// Storage size in MiB; can only grow
        #[arg(long, value_name = "MIB")]
        storage_mb: Option<u64>,
        /// Memory size: 1g, 2g, 4g, 8g or 16g; restarts the database
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// Put databases to sleep; the next connection wakes them
    Pause {
        /// Database IDs, unique ID prefixes, names or labels
        #[arg(required = true, value_name = "DATABASE")]
        databases: Vec<String>,
    },
    /// Wake databases
    Wake {
        /// Database IDs, unique ID prefixes, names or labels
        #[arg(required = true, value_name = "DATABASE")]
        databases: Vec<String>,
    },
    /// Show database statistics
    Stats {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Print the latest log lines
    Logs {
        /// Database ID, unique ID prefix, name or label
        database: String,
    },
    /// Delete databases and their data
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Database IDs, unique ID prefixes, names or labels
        #[arg(required = true)]
        databases: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::Psql(args) => return psql::run(&client, args).await,
                Command::Query(args) => query::run(&client, args, output).await?,
                Command::List => list(&client, output).await?,
                Command::Restore(args) => backups::restore(&client, args, output).await?,
                Command::Rm { databases } => {
                    let delete = async |text: &str| {
                        let id = resolve(&client, text).await?;
                        let delete = async { Ok(client.delete_database(&id).await?) };
                        let background = "the deletion continues; `pandastack db list` shows when it is done";
                        shown(format!("Deleting database {id}"), background, delete).await?;
                        Ok(id.to_string())
                    };
                    return each(&databases, output, delete).await;
                }
                Command::Get { databases } => {
                    let fetch = async |text: &str| {
                        let id = resolve(&client, text).await?;
                        Ok(client.get_database(&id).await?)
                    };
                    return show_each(&databases, output, fetch, details).await;
                }
                Command::Pause { databases } => {
                    let pause = async |text: &str| {
                        let id = resolve(&client, text).await?;
                        let pause = async { Ok(client.pause_database(&id).await?) };
                        shown(format!("Pausing database {id}"), &continues(&id), pause).await
                    };
                    return show_each(&databases, output, pause, |done| done.status.as_str().to_owned())
                        .await;
                }
                Command::Wake { databases } => {
                    let wake = async |text: &str| {
                        let id = resolve(&client, text).await?;
                        let wake = async { Ok(client.wake_database(&id).await?) };
                        shown(format!("Waking database {id}"), &continues(&id), wake).await
                    };
                    return show_each(&databases, output, wake, |done| done.status.as_str().to_owned()).await;
                }
                Command::Drill { database } => return backups::drill(&client, &database, output).await,
                other => other.change(&client, output).await?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn change(self, client: &Client, output: Output) -> Result<()> {
        match self {
            Command::Create { label, name, size, cpu, always_on, protected } => {
                let (always_on, protected) = (Some(always_on), Some(protected));
                let request =
                    CreateDatabase { name, label, size, cpu, always_on, protected, memory_mb: None };
                output.value(&create::create(client, &request).await?, details)
            }
            Command::Branch { database, label, name } => {
                let id = resolve(client, &database).await?;
                let request = CloneDatabase { name, label, ..CloneDatabase::default() };
                let branch = async { Ok(client.branch_database(&id, &request).await?) };
                let background = "the branch is still created; `pandastack db list` shows it";
                output.value(&shown("Creating a branch", background, branch).await?, details)
            }
            Command::Failover { database } => {
                let id = resolve(client, &database).await?;
                let fail_over = async { Ok(client.fail_over_database(&id).await?) };
                output.value(&shown("Failing over", &continues(&id), fail_over).await?, details)
            }
            Command::Set { database, label, always_on, protected, storage_mb, size } => {
                let id = resolve(client, &database).await?;
                let request = PatchDatabase { label, always_on, protected, storage_mb, size };
                let change = async { Ok(client.change_database(&id, &request).await?) };
                output.value(&shown("Changing the database", &continues(&id), change).await?, details)
            }
            Command::ResetPassword { database } => {
                let id = resolve(client, &database).await?;
                let reset = async { Ok(client.reset_database_credentials(&id).await?) };
                let background =
                    format!("the password is still replaced; `pandastack db url {id}` prints the new one");
                output.value(&shown("Resetting the password", &background, reset).await?, details)
            }
            Command::Backup { database } => {
                let id = resolve(client, &database).await?;
                let back_up = async { Ok(client.back_up_database(&id).await?) };
                let background = format!("the backup continues; `pandastack db backups {id}` shows it");
                output.value(&shown("Backing up", &background, back_up).await?, |base| base.name.clone())
            }
            other => other.show(client, output).await,
        }
    }

    async fn show(self, client: &Client, output: Output) -> Result<()> {
        match self {
            Command::Url { database, pooled } => {
                let id = resolve(client, &database).await?;
                let connection = client.database_connection(&id).await?;
                output.value(&connection, |c| {
                    if pooled { c.pooled_url.clone() } else { c.connection_url.clone() }
                })
            }
            Command::Backups { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.database_backups(&id).await?, backups::details)
            }
            Command::Stats { database } => {
                let id = resolve(client, &database).await?;
                output.value(&client.database_stats(&id).await?, describe::stats)
            }
            Command::Logs { database } => {
                let id = resolve(client, &database).await?;
                output.log(&client.database_logs(&id).await?)
            }
            _ => Ok(()),
        }
    }
}

/// Note that a change of a database continues when the wait for it ends early.
fn continues(id: &DatabaseId) -> String {
    format!("the change continues; to see its state, run `pandastack db get {id}`")
}

async fn list(client: &Client, output: Output) -> Result<()> {
    let databases = client.list_databases().await?;
    let now = Timestamp::now();
    let columns = ["ID", "NAME", "STATUS", "SIZE", "AGE"];
    output.table(&databases, columns, |database| row(database, age(database.created_at, now)))
}
