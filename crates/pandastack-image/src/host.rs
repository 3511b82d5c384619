//! The host's programs that builds and the store run, and the Debian packages that carry them.

use std::path::Path;

/// A program of the host and the Debian package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostProgram {
    /// As it is called.
    pub program: &'static str,
    /// Package for `apt-get install`.
    pub package: &'static str,
    /// Task that needs the program.
    pub needed_for: &'static str,
}

const fn needs(program: &'static str, package: &'static str, needed_for: &'static str) -> HostProgram {
    HostProgram { program, package, needed_for }
}

/// Every program of the host that this crate may run.
pub const HOST_PROGRAMS: &[HostProgram] = &[
    needs("apt-get", "apt", "fetching Debian packages"),
    needs("apt-cache", "apt", "fetching Debian packages"),
    needs("mmdebstrap", "mmdebstrap", "building templates"),
    needs("mkfs.ext4", "e2fsprogs", "building templates"),
    needs("e2fsck", "e2fsprogs", "building templates"),
    needs("resize2fs", "e2fsprogs", "building templates"),
    needs("setpriv", "util-linux", "building templates"),
    needs("fstrim", "util-linux", "building templates"),
    needs("unshare", "util-linux", "building templates"),
    needs("chroot", "coreutils", "building templates"),
    needs("python3", "python3", "fetching Python packages"),
    needs("npm", "npm", "fetching npm packages"),
    needs("depmod", "kmod", "preparing the guest kernel's modules"),
    needs("mkfs.xfs", "xfsprogs", "the reflink store on a file system without reflink"),
    needs("xfs_growfs", "xfsprogs", "the reflink store on a file system without reflink"),
    needs("losetup", "mount", "the reflink store on a file system without reflink"),
    needs("mount", "mount", "mounting images"),
    needs("umount", "mount", "mounting images"),
    needs("findmnt", "util-linux", "the reflink store on a file system without reflink"),
];

/// Debian's signing keys: without them no package can be checked.
pub(crate) const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The programs that this host lacks, in a stable order. Empty means builds can run.
pub fn missing_host_programs() -> Vec<HostProgram> {
    let mut missing: Vec<HostProgram> =
        HOST_PROGRAMS.iter().copied().filter(|host| !is_on_path(host.program)).collect();
    if !Path::new(DEBIAN_KEYRING).exists() {
        missing.push(needs(DEBIAN_KEYRING, "debian-archive-keyring", "checking Debian packages"));
    }
    // Debian's Python comes without pip, so where Python is missing pip is, too.
    if !has_pip() {
        missing.push(needs("python3 -m pip", "python3-pip", "fetching Python packages"));
    }
    missing
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(crate::command::EXTRA_PATH.split(':'))
        .any(|dir| !dir.is_empty() && Path::new(dir).join(program).is_file())
}

fn has_pip() -> bool {
    crate::command::Program::new("python3", "look for pip").args(["-c", "import pip"]).run().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_administrators_path_too() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program-here"));
        assert!(!is_on_path(""));
    }
}
