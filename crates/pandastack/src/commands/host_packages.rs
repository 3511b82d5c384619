//! `pandastack host-packages`: the Debian packages this host lacks, one a line. The one list that installers, `doctor`
//! and `up` read.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Result;
use pandastack_image::HostProgram;

use crate::output::Output;

/// What runs the machines; the rest is named by the crates that use it.
const QEMU: HostProgram =
    HostProgram { program: "qemu-system-x86_64", package: "qemu-system-x86", needed_for: "running machines" };

/// A package that is missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lack {
    /// Programs that come with it.
    pub programs: Vec<&'static str>,
    /// What cannot be done without it.
    pub needed_for: BTreeSet<&'static str>,
}

/// Carries it out.
pub fn run(output: Output) -> Result<ExitCode> {
    let packages: Vec<&str> = missing().into_keys().collect();
    if !packages.is_empty() {
        output.line(&packages.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every package that this host lacks, by name.
pub fn missing() -> BTreeMap<&'static str, Lack> {
    let qemu = (!is_on_path(QEMU.program)).then_some(QEMU);
    by_package(pandastack_image::missing_host_programs().into_iter().chain(qemu))
}

/// The command that installs them.
pub fn install_command(packages: &BTreeMap<&'static str, Lack>) -> String {
    let names: Vec<&str> = packages.keys().copied().collect();
    format!("sudo apt-get install --no-install-recommends {}", names.join(" "))
}

fn by_package(programs: impl Iterator<Item = HostProgram>) -> BTreeMap<&'static str, Lack> {
    let mut packages = BTreeMap::<&str, Lack>::new();
    for host in programs {
        let lack = packages.entry(host.package).or_default();
        lack.programs.push(host.program);
        lack.needed_for.insert(host.needed_for);
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
    fn a_package_is_named_once_with_all_that_it_is_for() {
        let program = |program, needed_for| HostProgram { program, package: "xfsprogs", needed_for };
        let found = by_package([program("mkfs.xfs", "making"), program("xfs_growfs", "growing")].into_iter());
        let lack = Lack {
            programs: vec!["mkfs.xfs", "xfs_growfs"],
            needed_for: BTreeSet::from(["growing", "making"]),
        };
        assert_eq!(install_command(&found), "sudo apt-get install --no-install-recommends xfsprogs");
        assert_eq!(found, BTreeMap::from([("xfsprogs", lack)]));
    }
}
