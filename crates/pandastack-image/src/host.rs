//! The host's programs that builds and the store run, and the Debian packages that carry them.

use std::path::Path;

/// A program of the host and the Debian package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostProgram {
    /// Name of the program.
    pub program: &'static str,
    /// Package for `apt-get install`.
    pub package: &'static str,
    /// Task that needs the program.
    pub needed_for: &'static str,
}

impl HostProgram {
    /// Whether the program is needed only to build a template or fetch a kernel. A host with
    /// prebuilt archives runs without it.
    pub fn is_for_builds(&self) -> bool {
        BUILDS.contains(&self.needed_for)
    }
}

const BUILDING: &str = "building templates";
const FETCHING_DEBIAN: &str = "fetching Debian packages";
const FETCHING_PYTHON: &str = "fetching Python packages";
const FETCHING_NPM: &str = "fetching npm packages";
const CHECKING_DEBIAN: &str = "checking Debian packages";
const KERNEL: &str = "preparing the guest kernel's modules";
const BUILDS: [&str; 6] = [BUILDING, FETCHING_DEBIAN, FETCHING_PYTHON, FETCHING_NPM, CHECKING_DEBIAN, KERNEL];
const VOLUMES: &str = "formatting volumes";
const STORE: &str = "the reflink store on a file system without reflink";

const fn needs(program: &'static str, package: &'static str, needed_for: &'static str) -> HostProgram {
    HostProgram { program, package, needed_for }
}

/// Every program of the host that this crate may run.
const PROGRAMS: &[HostProgram] = &[
    needs("apt-get", "apt", FETCHING_DEBIAN),
    needs("apt-cache", "apt", FETCHING_DEBIAN),
    needs("mmdebstrap", "mmdebstrap", BUILDING),
    needs("mkfs.ext4", "e2fsprogs", VOLUMES),
    needs("e2fsck", "e2fsprogs", BUILDING),
    needs("resize2fs", "e2fsprogs", BUILDING),
    needs("setpriv", "util-linux", BUILDING),
    needs("fstrim", "util-linux", BUILDING),
    needs("unshare", "util-linux", BUILDING),
    needs("chroot", "coreutils", BUILDING),
    needs("python3", "python3", FETCHING_PYTHON),
    needs("npm", "npm", FETCHING_NPM),
    needs("depmod", "kmod", KERNEL),
    needs("mkfs.xfs", "xfsprogs", STORE),
    needs("xfs_growfs", "xfsprogs", STORE),
    needs("losetup", "mount", STORE),
    needs("mount", "mount", "mounting images"),
    needs("umount", "mount", "mounting images"),
    needs("findmnt", "util-linux", STORE),
];

/// Debian's signing keys: without them no package can be checked.
pub(crate) const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether this host has prebuilt images, and so may start without the programs that build some.
pub fn has_prebuilt_images() -> bool {
    let entries = std::fs::read_dir(crate::default_archives_dir()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|extension| extension == "zst"))
}

const KEYRING: HostProgram = needs(DEBIAN_KEYRING, "debian-archive-keyring", CHECKING_DEBIAN);
const PIP: HostProgram = needs("python3 -m pip", "python3-pip", FETCHING_PYTHON);

/// All programs of the host that this crate may run.
pub fn host_programs() -> impl Iterator<Item = HostProgram> {
    PROGRAMS.iter().copied().chain([KEYRING, PIP])
}

/// The programs that this host lacks, in a stable order. Empty means builds can run.
pub fn missing_host_programs() -> Vec<HostProgram> {
    let has = |host: &HostProgram| match *host {
        KEYRING => Path::new(DEBIAN_KEYRING).exists(),
        // Debian packages Python without pip, so pip is also missing where Python is.
        PIP => has_pip(),
        _ => is_on_path(host.program),
    };
    host_programs().filter(|host| !has(host)).collect()
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
