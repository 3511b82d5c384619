//! Kernel modules: those that a boot needs, in the order that the initramfs lists them, and those for later.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// Loads every module of a list, one path per line. A kernel with everything built in has no list.
pub(super) fn load_listed(list: &Path) -> io::Result<()> {
    let Ok(paths) = std::fs::read_to_string(list) else { return Ok(()) };
    for path in paths.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let load = |file: File| match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(io::Error::from(errno)),
        };
        File::open(path)
            .and_then(load)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    }
    Ok(())
}

/// Copies the kernel's modules from `modules` of the initramfs to the same place on the root disk, where
/// `modprobe` finds them. A disk that was booted before has them.
pub(super) fn keep(modules: &Path, root: &Path) -> io::Result<()> {
    let Ok(releases) = std::fs::read_dir(modules) else { return Ok(()) };
    let home = root.join("lib/modules");
    for release in releases {
        let release = release?;
        let to = home.join(release.file_name());
        if to.exists() {
            continue;
        }
        // Half a copy must not look like a whole one to the next boot.
        let staged = home.join(".pandastack");
        match std::fs::remove_dir_all(&staged) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        copy_tree(&release.path(), &staged)?;
        std::fs::rename(&staged, &to)?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_copied_to_the_root_disk_once() {
        let dir = tempfile::tempdir().unwrap();
        let (modules, root) = (dir.path().join("initramfs"), dir.path().join("root"));
        let (from, to) = (modules.join("6.1"), root.join("lib/modules/6.1"));
        std::fs::create_dir_all(from.join("kernel/net")).unwrap();
        std::fs::write(from.join("kernel/net/veth.ko"), "veth").unwrap();
        // A boot that was cut off.
        std::fs::create_dir_all(root.join("lib/modules/.pandastack/half")).unwrap();
        keep(&modules, &root).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("kernel/net/veth.ko")).unwrap(), "veth");
        assert!(!to.join("half").exists());

        // What the user changed stays.
        std::fs::remove_dir_all(to.join("kernel")).unwrap();
        keep(&modules, &root).unwrap();
        assert!(!to.join("kernel").exists());
        keep(Path::new("/no-such-directory"), &root).unwrap();
    }
}
