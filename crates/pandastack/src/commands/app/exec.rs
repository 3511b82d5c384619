//! `pandastack app exec`: runs a command in an instance of an app.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::commands::sandbox::exec::{ExecOptions, run_in};
use crate::failure::{ExecError, Failure};
use crate::output::Output;

/// Source directory in an app's instances.
const SOURCE_DIR: &str = "/srv/app";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// App name or ID
    app: String,
    #[command(flatten)]
    options: ExecOptions,
    /// Command to run, in /srv/app unless --cwd is given; a single word is run by the shell
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let ran = async {
        let Args { app, mut options, command } = args;
        let none = || Failure::new(format!("app `{app}` has no live deployment"));
        let sandbox = client.get_app(&app).await?.sandbox_id;
        let sandbox = sandbox.ok_or_else(|| none().hint(format!("run `pandastack app deploy {app}`")))?;
        options.cwd.get_or_insert_with(|| SOURCE_DIR.to_owned());
        run_in(client, &sandbox, options, command, output).await
    };
    ran.await.map_err(|error| ExecError(error).into())
}
