//! `pandastack app attach` and `detach`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{AttachDatabase, EnvScope};

use super::env::scope;
use crate::commands::db::resolve;
use crate::output::Output;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct Attach {
    /// The app's name or id
    app: String,
    /// The database: its id, the beginning of it, or its label
    database: String,
    /// Variable that holds its connection string
    #[arg(long, value_name = "NAME", default_value = "DATABASE_URL")]
    env: String,
    /// Who reaches it: production (the app itself), preview (of pull requests), all
    #[arg(long, default_value = "production", value_parser = scope)]
    scope: EnvScope,
    /// Let builds reach it too
    #[arg(long)]
    build: bool,
}

/// Arguments of `detach`.
#[derive(Debug, clap::Args)]
pub struct Detach {
    /// The app's name or id
    app: String,
    /// The database: its id, the beginning of it, or its label
    database: String,
}

/// Attaches a database.
pub(super) async fn attach(client: &Client, args: Attach, output: Output) -> Result<ExitCode> {
    let Attach { app, database, env, scope, build } = args;
    let id = resolve(client, &database).await?;
    let request = AttachDatabase { env: Some(env), scope: Some(scope), build };
    let attached = client.attach_database(&app, &id, &request).await?;
    eprintln!(
        "{} is there from the next deployment on; `pandastack app restart {app}` is enough",
        attached.env
    );
    output.value(&attached, |attached| attached.database.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Detaches a database.
pub(super) async fn detach(client: &Client, args: Detach, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.database).await?;
    client.detach_database(&args.app, &id).await?;
    output.line(id.as_str())?;
    Ok(ExitCode::SUCCESS)
}
