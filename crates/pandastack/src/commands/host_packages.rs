//! `pandastack host-packages`: Debian packages that this host lacks, or that any host needs, one per
//! line. Installers, packages of a release, `doctor` and `up` use this list.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Result;
use pandastack_image::HostProgram;

use crate::output::Output;

/// The emulator. Other programs are listed by the crates that use them.
const QEMU: HostProgram =
    HostProgram { program: "qemu-system-x86_64", package: "qemu-system-x86", needed_for: "running machines" };

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// All packages that a host needs to run machines, installed or not
    #[arg(long, conflicts_with = "for_builds")]
    all: bool,
    /// All packages that only building a template needs
    #[arg(long)]
    for_builds: bool,
}

/// A missing package.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MissingPackage {
    /// Programs in the package.
    pub programs: Vec<&'static str>,
    /// Purposes of the package.
    pub needed_for: BTreeSet<&'static str>,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let every = || pandastack_image::host_programs().chain([QEMU]);
    let packages = match (args.all, args.for_builds) {
        (true, _) => by_package(every().filter(|program| !program.is_for_builds())),
        (_, true) => by_package(every().filter(HostProgram::is_for_builds)),
        _ => missing(),
    };
    let packages: Vec<&str> = packages.into_keys().collect();
    if !packages.is_empty() {
        output.line(&packages.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All packages missing on this host, by name. With prebuilt images, builds can wait: see [`missing_for_builds`].
pub fn missing() -> BTreeMap<&'static str, MissingPackage> {
    let builds_wait = pandastack_image::has_prebuilt_images();
    let qemu = (!is_on_path(QEMU.program)).then_some(QEMU);
    let missing = pandastack_image::missing_host_programs().into_iter().chain(qemu);
    by_package(missing.filter(|program| !(builds_wait && program.is_for_builds())))
}

/// The missing packages that only builds of templates need.
pub fn missing_for_builds() -> BTreeMap<&'static str, MissingPackage> {
    by_package(pandastack_image::missing_host_programs().into_iter().filter(HostProgram::is_for_builds))
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
