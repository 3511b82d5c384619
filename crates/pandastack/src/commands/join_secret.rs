//! `pandastack join-secret`: a fresh secret for the link between control and agents.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;
use crate::supervise::secret;

/// Carries it out.
pub fn run(output: Output) -> Result<ExitCode> {
    output.line(&secret::generate()?)?;
    Ok(ExitCode::SUCCESS)
}
