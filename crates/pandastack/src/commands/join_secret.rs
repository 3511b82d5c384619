//! `pandastack join-secret`: generates a join secret for control and agents.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;
use crate::supervise::secret;

/// Runs the command.
pub fn run(output: Output) -> Result<ExitCode> {
    output.line(&secret::generate()?)?;
    Ok(ExitCode::SUCCESS)
}
