//! `pandastack db psql`: opens a database with the local psql.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Result;
use pandastack_client::Client;

use super::resolve::resolve;
use crate::failure::Failure;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Database ID, unique ID prefix, name or label
    database: String,
    /// Connect through the connection pooler
    #[arg(long)]
    pooled: bool,
    /// Arguments for psql
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Replaces this process with psql; returns only on failure.
pub async fn run(client: &Client, args: Args) -> Result<ExitCode> {
    let id = resolve(client, &args.database).await?;
    let connection = client.database_connection(&id).await?;
    let url = if args.pooled { &connection.pooled_url } else { &connection.connection_url };
    // The password is passed in the environment: arguments are visible to every user of the machine.
    let url = url.replacen(&format!(":{}@", connection.password), "@", 1);
    let error =
        Command::new("psql").arg(url).args(args.arguments).env("PGPASSWORD", &connection.password).exec();
    let failure = Failure::new(format!("cannot start psql: {error}"));
    Err(failure
        .hint("install it (on Debian, `apt install postgresql-client`), or use `pandastack db query`")
        .into())
}
