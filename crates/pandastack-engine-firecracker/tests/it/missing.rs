//! Requirements that a host may lack, in which case its tests are skipped. Any other problem that
//! keeps the engine from starting fails them: a jailer of another release, a program that does not
//! print its version, a version that is not supported.

use std::fmt;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pandastack_engine::host;
use pandastack_engine_firecracker::Launcher;

/// A named reason to skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Jailed machines get users, namespaces and device files of their own.
    Root,
    /// Processors that run guests, and the right to use them.
    Kvm,
    /// The program.
    Firecracker,
    /// The program that confines the other.
    Jailer,
    /// Compiler for the tests' guest program.
    Compiler,
}

impl Missing {
    /// The first requirement that this host lacks, found without starting anything.
    pub fn on_this_host(launcher: Launcher) -> Option<Self> {
        let is_jailed = launcher == Launcher::Jailer;
        if is_jailed && !rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        if lacks_kvm() {
            return Some(Self::Kvm);
        }
        let Some(firecracker) = firecracker() else { return Some(Self::Firecracker) };
        if is_jailed && jailer(&firecracker).is_none() {
            return Some(Self::Jailer);
        }
        host::program_on_path("gcc").is_none().then_some(Self::Compiler)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "jailed machines need root",
            Self::Kvm => "/dev/kvm cannot be opened",
            Self::Firecracker => "Firecracker is not installed; name it in PANDASTACK_FIRECRACKER",
            Self::Jailer => "Firecracker's jailer is not installed; name it in PANDASTACK_JAILER",
            Self::Compiler => "gcc is not installed",
        })
    }
}

/// Whether the device is missing, has no hardware behind it, or is closed to this user. Tests
/// report any other error.
fn lacks_kvm() -> bool {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    opened.is_err_and(|error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
            || matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
    })
}

/// Firecracker where the environment names none: beside the clone.
pub fn firecracker_beside_the_clone() -> Option<PathBuf> {
    let is_named = std::env::var_os("PANDASTACK_FIRECRACKER").is_some();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/kvm-lab/firecracker");
    Some(beside).filter(|path| !is_named && path.is_file())
}

/// Firecracker's path, found as the engine finds it. A path from the environment need not exist:
/// the engine reports that.
pub fn firecracker() -> Option<PathBuf> {
    let program = firecracker_beside_the_clone().or_else(|| named("PANDASTACK_FIRECRACKER"));
    program.or_else(|| host::program_on_path("firecracker"))
}

/// The jailer of a Firecracker, in the same way.
pub fn jailer(firecracker: &Path) -> Option<PathBuf> {
    let beside = || Some(firecracker.with_file_name("jailer")).filter(|path| path.is_file());
    named("PANDASTACK_JAILER").or_else(beside).or_else(|| host::program_on_path("jailer"))
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
