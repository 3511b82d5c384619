//! Mounts, and the move from the initramfs into the root disk.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::{chdir, chroot};

use super::modules;
use crate::console::log;

const NEW_ROOT: &str = "/newroot";

/// Mounts the file systems that finding the root disk needs.
pub(super) fn mount_early() -> io::Result<()> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    mount_at("proc", "/proc", "proc", plain, "")?;
    mount_at("sysfs", "/sys", "sysfs", plain, "")?;
    mount_at("devtmpfs", "/dev", "devtmpfs", MsFlags::MS_NOSUID, "mode=0755")
}

/// Mounts the file systems that programs expect, once in the root disk.
pub(super) fn mount_late() -> io::Result<()> {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_at(
        "devpts",
        "/dev/pts",
        "devpts",
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        "mode=0620,gid=5,ptmxmode=0666",
    )?;
    mount_at("tmpfs", "/dev/shm", "tmpfs", safe, "mode=1777")?;
    mount_at("tmpfs", "/run", "tmpfs", safe, "mode=0755")?;
    // /tmp stays on the disk: a sandbox has more of that than of memory.
    std::fs::create_dir_all("/tmp")?;
    std::fs::set_permissions("/tmp", std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    let cgroup_flags = safe | MsFlags::MS_NOEXEC;
    mount_at(
        "cgroup2",
        "/sys/fs/cgroup",
        "cgroup2",
        cgroup_flags,
        "favordynmods,nsdelegate,memory_recursiveprot",
    )
    // Kernels before 6.0 do not know the first option.
    .or_else(|_| mount_at("cgroup2", "/sys/fs/cgroup", "cgroup2", cgroup_flags, ""))?;
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        // An image may have its own link, which takes precedence.
        let _ = std::os::unix::fs::symlink(target, link);
    }
    Ok(())
}

/// Mounts the root disk and makes it `/`. The initramfs's files are removed first: they are memory.
pub(super) fn switch_to_root(disk: &str, options: &str) -> io::Result<()> {
    let (flags, data) = mount_options(options);
    mount_at(disk, NEW_ROOT, "ext4", flags, &data)?;
    // A full or read-only disk boots without them.
    if let Err(error) = modules::keep(Path::new("/lib/modules"), Path::new(NEW_ROOT)) {
        log(&format!("no kernel modules on the root disk: {error}"));
    }
    for directory in ["/dev", "/proc", "/sys"] {
        let target = format!("{NEW_ROOT}{directory}");
        std::fs::create_dir_all(&target)?;
        mount(Some(directory), target.as_str(), None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    }
    for leftover in ["/lib", "/init"] {
        let path = Path::new(leftover);
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
    chdir(NEW_ROOT)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    chroot(".")?;
    chdir("/")?;
    Ok(())
}

fn mount_options(options: &str) -> (MsFlags, String) {
    let mut flags = MsFlags::MS_NOATIME;
    let mut data = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "ro" => flags |= MsFlags::MS_RDONLY,
            "rw" | "noatime" => {}
            "relatime" => flags = (flags & !MsFlags::MS_NOATIME) | MsFlags::MS_RELATIME,
            "lazytime" => flags |= MsFlags::MS_LAZYTIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            other => data.push(other),
        }
    }
    (flags, data.join(","))
}

fn mount_at(source: &str, target: &str, kind: &str, flags: MsFlags, data: &str) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    match mount(Some(source), target, Some(kind), flags, Some(data)) {
        // The kernel may have mounted devtmpfs itself.
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(errno) => {
            Err(io::Error::new(io::Error::from(errno).kind(), format!("{target}: {}", errno.desc())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_are_split_into_flags_and_data() {
        assert_eq!(mount_options(""), (MsFlags::MS_NOATIME, String::new()));
        let (flags, data) = mount_options("ro,discard,lazytime,commit=60");
        assert_eq!(flags, MsFlags::MS_NOATIME | MsFlags::MS_RDONLY | MsFlags::MS_LAZYTIME);
        assert_eq!(data, "discard,commit=60");
    }
}
