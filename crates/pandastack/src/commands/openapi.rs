//! `pandastack openapi`: the API's description, generated from the types that serve it.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;

/// Carries it out.
pub fn run(output: Output) -> Result<ExitCode> {
    output.raw(pandastack_control::openapi_json().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
