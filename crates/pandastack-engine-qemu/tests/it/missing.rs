//! Requirements that a host may lack, in which case its tests are skipped. Any other problem that
//! keeps the engine from starting fails them.

use std::fmt;

/// A named reason to skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Machines get users, namespaces and taps of their own.
    Root,
    /// The emulator.
    Emulator,
    /// Compiler for the tests' guest program.
    Compiler,
    /// Program that fetches the kernel's package.
    PackageManager,
    /// Archive with the kernel's package.
    Archive,
}

impl Missing {
    /// The first requirement that this host lacks, found without starting anything.
    pub fn on_this_host() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        let programs = [
            ("qemu-system-x86_64", Self::Emulator),
            ("gcc", Self::Compiler),
            ("apt-get", Self::PackageManager),
        ];
        programs.into_iter().find(|(name, _)| !is_on_path(name)).map(|(_, missing)| missing)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "machines need root",
            Self::Emulator => "qemu-system-x86_64 is not installed",
            Self::Compiler => "gcc is not installed",
            Self::PackageManager => "apt-get is not installed",
            Self::Archive => "apt knows no Debian archive",
        })
    }
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
