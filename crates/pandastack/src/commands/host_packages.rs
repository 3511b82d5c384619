//! `pandastack host-packages`: Debian packages missing on this host, one per line. Installers,
//! `doctor` and `up` use this list.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Result;
use pandastack_image::HostProgram;

use crate::output::Output;

/// The emulator. Other programs are listed by the crates that use them.
const QEMU: HostProgram =
    HostProgram { program: "qemu-system-x86_64", package: "qemu-system-x86", needed_for: "running machines" };

/// A missing package.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MissingPackage {
    /// Programs in the package.
    pub programs: Vec<&'static str>,
    /// What the package is needed for.
    pub needed_for: BTreeSet<&'static str>,
}

/// Runs the command.
pub fn run(output: Output) -> Result<ExitCode> {
    let packages: Vec<&str> = missing().into_keys().collect();
    if !packages.is_empty() {
        output.line(&packages.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All packages missing on this host, by name.
pub fn missing() -> BTreeMap<&'static str, MissingPackage> {
    let qemu = (!is_on_path(QEMU.program)).then_some(QEMU);
    by_package(pandastack_image::missing_host_programs().into_iter().chain(qemu))
}

/// The command that installs them.
pub fn install_command(packages: &BTreeMap<&'static str, MissingPackage>) -> String {
    let names: Vec<&str> = packages.keys().copied().collect();
    format!("sudo apt-get install --no-install-recommends {}", names.join(" "))
}

fn by_package(programs: impl Iterator<Item = HostProgram>) -> BTreeMap<&'static str, MissingPackage> {
    let mut packages = BTreeMap::<&str, MissingPackage>::new();
    for host in programs {
        let missing = packages.entry(host.package).or_default();
        missing.programs.push(host.program);
        missing.needed_for.insert(host.needed_for);
    }
    packages
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_listed_once_with_all_its_uses() {
        let program = |program, needed_for| HostProgram { program, package: "xfsprogs", needed_for };
        let found = by_package([program("mkfs.xfs", "making"), program("xfs_growfs", "growing")].into_iter());
        let missing = MissingPackage {
            programs: vec!["mkfs.xfs", "xfs_growfs"],
            needed_for: BTreeSet::from(["growing", "making"]),
        };
        assert_eq!(install_command(&found), "sudo apt-get install --no-install-recommends xfsprogs");
        assert_eq!(found, BTreeMap::from([("xfsprogs", missing)]));
    }
}
