//! `pandastack fn invoke`: a call from the command line.

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::api::{FunctionRunStatus, InvokeFunction};

use crate::failure::{Failure, TIMED_OUT};
use crate::output::Output;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The function's name or id
    name: String,
    /// The event, as JSON; `-` reads it from standard input
    #[arg(default_value = "null")]
    input: String,
    /// A version or an alias
    #[arg(long)]
    version: Option<String>,
    /// Queue the call and print its run
    #[arg(long = "async")]
    is_async: bool,
}

/// Calls, prints what it printed to standard error and what it answered to standard output.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let text = match args.input.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("read the event from standard input")?;
            text
        }
        text => text.to_owned(),
    };
    let input = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!("the event is not JSON: {error}"))
            .hint("quote it for the shell: '{\"name\": \"you\"}'")
    })?;
    let request = InvokeFunction { input: Some(input), is_async: args.is_async };
    let run = client.invoke_function(&args.name, &request, args.version.as_deref()).await?;
    if output.is_json() || args.is_async {
        output.value(&run, |run| run.id.to_string())?;
    } else {
        eprint!("{}{}", run.stdout, run.stderr);
        if let Some(answer) = &run.output {
            output.line(&serde_json::to_string_pretty(answer)?)?;
        }
    }
    if let Some(error) = run.error.as_ref().filter(|_| !output.is_json()) {
        eprintln!("error: {error}");
    }
    Ok(match run.status {
        FunctionRunStatus::Success | FunctionRunStatus::Queued | FunctionRunStatus::Running => {
            ExitCode::SUCCESS
        }
        FunctionRunStatus::Timeout => ExitCode::from(TIMED_OUT),
        FunctionRunStatus::Error => ExitCode::FAILURE,
    })
}
