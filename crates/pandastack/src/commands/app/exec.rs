//! `pandastack app exec`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::commands::sandbox::exec::{How, run_in};
use crate::failure::{Failure, WhileRunning};
use crate::output::Output;

/// Where the source of an app is in its machines; their variables are the app's.
const SOURCE_DIR: &str = "/srv/app";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The app's name or id
    app: String,
    #[command(flatten)]
    how: How,
    /// The command; a single word is run by the shell, in /srv/app unless --cwd names another directory
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Carries it out.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let ran = async {
        let Args { app, mut how, command } = args;
        let none = || Failure::new(format!("app `{app}` has no version that serves"));
        let sandbox = client.get_app(&app).await?.sandbox_id;
        let sandbox =
            sandbox.ok_or_else(|| none().hint(format!("deploy it first: pandastack app deploy {app}")))?;
        how.cwd.get_or_insert_with(|| SOURCE_DIR.to_owned());
        run_in(client, &sandbox, how, command, output).await
    };
    ran.await.map_err(|error| WhileRunning(error).into())
}
