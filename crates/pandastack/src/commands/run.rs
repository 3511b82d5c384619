//! `pandastack run CMD`: runs a command in a new sandbox.
//!
//! Streams the output and exits with the command's exit code. The sandbox is always deleted; if
//! this program is killed, the sandbox expires with its TTL.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{CreateSandbox, ExecRequest, RunRequest, Sandbox};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;

use super::command_line::{command_line, to_exit_code};
use super::create;
use super::pairs::pairs;
use super::runtime::with_client;
use super::sandbox::exec::stream_until_interrupted;
use crate::failure::ExecError;
use crate::output::Output;

/// TTL of the sandbox beyond the command's timeout, in case it is not deleted.
const TTL_SLACK_SECONDS: u64 = 60;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template of the sandbox
    #[arg(long, short, default_value = "base")]
    template: String,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = EXEC_TIMEOUT_SECONDS_DEFAULT)]
    timeout: u64,
    /// Environment variable for the command; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Command to run, with its arguments; a single word is run by the shell
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let (cmd, argv) = command_line(args.command);
        let env = pairs(&args.env)?;
        let exec = ExecRequest { cmd, argv, env, timeout_seconds: Some(args.timeout), ..Default::default() };
        let outcome = if output.is_json() {
            run_once(&client, args.template, exec, output).await
        } else {
            run_streaming(&client, args.template, exec, output).await
        };
        outcome.map_err(|error| ExecError(error).into())
    })
}

async fn run_once(client: &Client, template: String, exec: ExecRequest, output: Output) -> Result<ExitCode> {
    let result = client.run(&RunRequest { template: Some(template), exec }).await?;
    output.value(&result, |_| String::new())?;
    Ok(ExitCode::from(to_exit_code(result.result.exit_code)))
}

async fn run_streaming(
    client: &Client,
    template: String,
    exec: ExecRequest,
    output: Output,
) -> Result<ExitCode> {
    let lifetime = exec.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT) + TTL_SLACK_SECONDS;
    let request =
        CreateSandbox { template: Some(template), ttl_seconds: Some(lifetime), ..Default::default() };
    let sandbox = create::create(client, &request).await?;
    let outcome = stream_until_interrupted(client, &sandbox.id, &exec, output).await;
    delete(client, &sandbox).await;
    Ok(ExitCode::from(outcome?))
}

/// Deletes the sandbox. A failure is only a warning: the command's result matters more.
async fn delete(client: &Client, sandbox: &Sandbox) {
    if let Err(error) = client.delete_sandbox(&sandbox.id).await {
        eprintln!("warning: cannot delete sandbox {}: {error}; it will expire with its TTL", sandbox.id);
    }
}
