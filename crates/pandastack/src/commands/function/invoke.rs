//! `pandastack fn invoke`: calls a function.

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::api::{FunctionRunStatus, InvokeFunction};

use crate::commands::wait::shown;
use crate::failure::{Failure, TIMED_OUT};
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Function name or ID
    name: String,
    /// Event as JSON; `-` reads it from standard input
    #[arg(default_value = "null")]
    input: String,
    /// Version or alias to call [default: the current version]
    #[arg(long)]
    version: Option<String>,
    /// Queue the call and print the run ID
    #[arg(long = "async")]
    is_async: bool,
}

/// Calls the function; prints its logs to standard error and its response to standard output.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let text = match args.input.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read the event from standard input")?;
            text
        }
        text => text.to_owned(),
    };
    let input = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!("the event is not valid JSON: {error}"))
            .hint("quote it for the shell, such as '{\"name\": \"you\"}'")
    })?;
    let request = InvokeFunction { input: Some(input), is_async: args.is_async };
    let call = async { Ok(client.invoke_function(&args.name, &request, args.version.as_deref()).await?) };
    let background = format!("the call continues; to see its result, run `pandastack fn runs {}`", args.name);
    let run = shown(format!("Calling function {}", args.name), &background, call).await?;
    if output.is_json() || args.is_async {
        output.value(&run, |run| run.id.to_string())?;
    } else {
        eprint!("{}{}", run.stdout, run.stderr);
        if let Some(response) = &run.output {
            output.line(&serde_json::to_string_pretty(response)?)?;
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
