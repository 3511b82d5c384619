//! `pandastack openapi`: the OpenAPI document, generated from the API's types.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;

/// Runs the command.
pub fn run(output: Output) -> Result<ExitCode> {
    output.raw(pandastack_control::openapi_json().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
