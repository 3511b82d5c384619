//! `pandastack kvm-probe`: the throwaway child in which the KVM probe executes instructions. It may hang or die; its
//! parent has a deadline.

use std::process::ExitCode;

use anyhow::Result;

/// Carries it out.
pub fn run() -> Result<ExitCode> {
    Ok(pandastack_engine::kvm_probe::run_child())
}
