//! `pandastack db psql`: a shell in a database, by this machine's own psql.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Result;
use pandastack_client::Client;

use super::resolve;
use crate::failure::Failure;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Database
    database: String,
    /// Through the pooler
    #[arg(long)]
    pooled: bool,
    /// Passed on to psql
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Becomes psql; returns only if it cannot.
pub async fn run(client: &Client, args: Args) -> Result<ExitCode> {
    let id = resolve(client, &args.database).await?;
    let connection = client.database_connection(&id).await?;
    let url = if args.pooled { &connection.pooled_url } else { &connection.connection_url };
    // The password goes by the environment: arguments can be read by everybody on the machine.
    let url = url.replacen(&format!(":{}@", connection.password), "@", 1);
    let error =
        Command::new("psql").arg(url).args(args.arguments).env("PGPASSWORD", &connection.password).exec();
    let failure = Failure::new(format!("psql does not start: {error}"));
    Err(failure
        .hint("install it (Debian: `apt install postgresql-client`), or use `pandastack db query`")
        .into())
}
