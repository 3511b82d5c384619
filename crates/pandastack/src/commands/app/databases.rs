//! `pandastack app attach` and `detach`: databases of an app.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{AttachDatabase, EnvScope};

use super::env::scope;
use crate::commands::db::resolve::resolve;
use crate::output::Output;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct Attach {
    /// App name or ID
    app: String,
    /// Database ID, unique ID prefix, name or label
    database: String,
    /// Environment variable for the connection string
    #[arg(long = "variable", alias = "env", value_name = "NAME", default_value = "DATABASE_URL")]
    env: String,
    /// Deployments that can use it: production, preview (of pull requests) or all
    #[arg(long, default_value = "production", value_parser = scope)]
    scope: EnvScope,
    /// Also make it available to builds
    #[arg(long = "in-builds", alias = "build")]
    build: bool,
}

/// Arguments of `detach`.
#[derive(Debug, clap::Args)]
pub struct Detach {
    /// App name or ID
    app: String,
    /// Database ID, unique ID prefix, name or label
    database: String,
}

/// Attaches a database.
pub(super) async fn attach(client: &Client, args: Attach, output: Output) -> Result<ExitCode> {
    let Attach { app, database, env, scope, build } = args;
    let id = resolve(client, &database).await?;
    let request = AttachDatabase { env: Some(env), scope: Some(scope), build };
    let attached = client.attach_database(&app, &id, &request).await?;
    eprintln!(
        "{} is set from the next deployment on; to apply it now, run `pandastack app restart {app}`",
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
