//! `pandastack kvm-probe`: the child process in which the KVM probe executes instructions. It may
//! hang or crash; its parent enforces a deadline.

use std::process::ExitCode;

use anyhow::Result;

/// Runs the command.
pub fn run() -> Result<ExitCode> {
    Ok(pandastack_engine::kvm_probe::run_child())
}
