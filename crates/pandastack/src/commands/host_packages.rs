//! `pandastack host-packages`: the Debian packages this host lacks, one a line. The one list that installers read.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;

use crate::output::Output;

/// What runs the machines; the rest is named by the crates that use it.
const QEMU: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");

/// Carries it out.
pub fn run(output: Output) -> Result<ExitCode> {
    let mut packages: BTreeSet<&str> =
        pandastack_image::missing_host_programs().iter().map(|host| host.package).collect();
    if !is_on_path(QEMU.0) {
        packages.insert(QEMU.1);
    }
    output.line(&packages.into_iter().collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
