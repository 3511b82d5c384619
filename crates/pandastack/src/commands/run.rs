//! `pandastack run -- CMD`: one command in a fresh sandbox.
//!
//! Output streams as it is produced and the command's exit code becomes ours. The sandbox is deleted whatever happens;
//! should this program be killed, its TTL ends it.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{CreateSandbox, ExecRequest, RunRequest, Sandbox};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;

use super::{command_line, create, pairs, sandbox::exec::stream_until_interrupted};
use crate::failure::WhileRunning;
use crate::output::Output;

/// Life of the sandbox beyond its command's timeout, should nobody delete it.
const TTL_SLACK_SECONDS: u64 = 60;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template to run in
    #[arg(long, short, default_value = "base")]
    template: String,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = EXEC_TIMEOUT_SECONDS_DEFAULT)]
    timeout: u64,
    /// Environment variable of the command
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// The command; a single word is run by the shell
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    super::with_client(|client| async move {
        let (cmd, argv) = command_line(args.command);
        let env = pairs(&args.env)?;
        let exec = ExecRequest { cmd, argv, env, timeout_seconds: Some(args.timeout), ..Default::default() };
        let outcome = if output.is_json() {
            run_once(&client, args.template, exec, output).await
        } else {
            run_streaming(&client, args.template, exec, output).await
        };
        outcome.map_err(|error| WhileRunning(error).into())
    })
}

async fn run_once(client: &Client, template: String, exec: ExecRequest, output: Output) -> Result<ExitCode> {
    let result = client.run(&RunRequest { template: Some(template), exec }).await?;
    output.value(&result, |_| String::new())?;
    Ok(ExitCode::from(passed_on(result.result.exit_code)))
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

/// The command's result matters more than a delete that failed: that one is only told.
async fn delete(client: &Client, sandbox: &Sandbox) {
    if let Err(error) = client.delete_sandbox(&sandbox.id).await {
        eprintln!("warning: sandbox {} was not deleted, its TTL will end it: {error}", sandbox.id);
    }
}

/// A guest's exit code as a process can have it.
pub fn passed_on(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_beyond_a_byte_stay_failures() {
        assert_eq!(passed_on(0), 0);
        assert_eq!(passed_on(137), 137);
        assert_eq!(passed_on(256), 255);
        assert_eq!(passed_on(-1), 255);
    }
}
