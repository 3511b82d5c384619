//! Volumes: found by serial number or device name, and mounted at the path that the host sends.
//!
//! The places of durable disks are devices that every machine has. A disk without a volume has no
//! size. The news of a size comes with an interrupt, moments after the machine runs, so a mount
//! waits for it.
//!
//! Left to others: which disk, where to, and who may write it. Data is synced by [`crate::server`] before the machine stops.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, VolumeMount};

/// Longest time for a disk to show the size that the host gave it.
const SIZE_WAIT_MAX: Duration = Duration::from_secs(20);
/// Interval between checks of the device's size.
const SIZE_LOOK: Duration = Duration::from_millis(1);
/// The kernel counts sizes of disks in these.
const SECTOR_BYTES: u64 = 512;

nix::ioctl_write_ptr!(ext4_resize, b'f', 16, u64);

/// Mounts a disk and lets its file system fill it.
pub(crate) fn mount_volume(wanted: &VolumeMount) -> Result<(), ErrorBody> {
    let disk = Disk::find(&wanted.serial)?;
    let bytes = disk.wait_for(1)?;
    let path = PathBuf::from(OsStr::from_bytes(wanted.path.as_bytes()));
    if disk.mounted_at()?.is_some_and(|at| at == path) {
        return Ok(());
    }
    fs::create_dir_all(&path).map_err(|error| failed("make the directory", &path, error))?;
    // Freed blocks go back to the host. A file system that is found broken takes no more writes.
    let (flags, options) = match wanted.read_only {
        true => (MsFlags::MS_RDONLY, "noload"),
        false => (MsFlags::empty(), "discard,errors=remount-ro"),
    };
    let flags = flags | MsFlags::MS_NOATIME | MsFlags::MS_NODEV;
    mount(Some(&disk.device), &path, Some("ext4"), flags, Some(options))
        .map_err(|errno| failed("mount the volume at", &path, errno.into()))?;
    if wanted.read_only { Ok(()) } else { fill(&path, bytes) }
}

/// Grows the mounted file system of a disk to its new size.
pub(crate) fn grow(serial: &str, bytes: u64) -> Result<(), ErrorBody> {
    let disk = Disk::find(serial)?;
    let bytes = disk.wait_for(bytes)?;
    let not_mounted = || ErrorBody::new(ErrorCode::Invalid, format!("{serial} is not mounted"));
    fill(&disk.mounted_at()?.ok_or_else(not_mounted)?, bytes)
}

/// A device.
struct Disk {
    device: PathBuf,
    size: PathBuf,
}

impl Disk {
    /// Finds a disk by its serial number, or by its device name where serial numbers cannot be set.
    fn find(serial: &str) -> Result<Self, ErrorBody> {
        let disks =
            fs::read_dir("/sys/block").map_err(|error| failed("list", Path::new("/sys/block"), error))?;
        for entry in disks.flatten() {
            let found = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
            if found.trim_end_matches(['\n', '\0']) == serial || entry.file_name() == *serial {
                let device = Path::new("/dev").join(entry.file_name());
                return Ok(Self { device, size: entry.path().join("size") });
            }
        }
        Err(ErrorBody::new(ErrorCode::NotFound, format!("this machine has no disk {serial}")))
    }

    fn bytes(&self) -> u64 {
        let sectors = fs::read_to_string(&self.size).ok().and_then(|text| text.trim().parse::<u64>().ok());
        sectors.unwrap_or(0).saturating_mul(SECTOR_BYTES)
    }

    /// Waits until the disk has at least that size and returns its size.
    fn wait_for(&self, bytes_min: u64) -> Result<u64, ErrorBody> {
        let deadline = Instant::now() + SIZE_WAIT_MAX;
        loop {
            match self.bytes() {
                bytes if bytes >= bytes_min => return Ok(bytes),
                bytes if Instant::now() >= deadline => {
                    let message = format!(
                        "{} has {bytes} bytes after {SIZE_WAIT_MAX:?}, and {bytes_min} were announced",
                        self.device.display()
                    );
                    return Err(ErrorBody::new(ErrorCode::Timeout, message));
                }
                #[expect(clippy::disallowed_methods, reason = "nothing tells when a device has its size")]
                _ => std::thread::sleep(SIZE_LOOK),
            }
        }
    }

    fn mounted_at(&self) -> Result<Option<PathBuf>, ErrorBody> {
        let table = Path::new("/proc/self/mounts");
        let text = fs::read_to_string(table).map_err(|error| failed("read", table, error))?;
        Ok(mounted_at(&text, &self.device.to_string_lossy()))
    }
}

/// Mount point of a device in a table of mounts, the latest mount first.
fn mounted_at(table: &str, device: &str) -> Option<PathBuf> {
    let mounts = table.lines().filter_map(|line| line.split_once(' '));
    let of_device = mounts.filter(|(source, _)| *source == device);
    let at = of_device.filter_map(|(_, rest)| rest.split(' ').next()).next_back()?;
    // The kernel writes blanks in paths as octal numbers.
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    Some(plain.into_iter().fold(at.to_owned(), |path, (code, text)| path.replace(code, text)).into())
}

/// Grows the file system at `path` to a disk of `bytes`. Does nothing if it already fills the disk.
fn fill(path: &Path, bytes: u64) -> Result<(), ErrorBody> {
    let directory = File::open(path).map_err(|error| failed("open", path, error))?;
    let stat = nix::sys::statfs::fstatfs(&directory)
        .map_err(|errno| failed("read the metadata of", path, errno.into()))?;
    let block_bytes = u64::try_from(stat.block_size()).unwrap_or(0).max(1);
    let blocks = bytes / block_bytes;
    // SAFETY: the descriptor is open and the argument is the 64-bit number that the call reads.
    match unsafe { ext4_resize(directory.as_raw_fd(), &blocks) } {
        Ok(_) => Ok(()),
        // The file system already has that size, or the last group is too small to be used.
        Err(Errno::EINVAL | Errno::ENOSPC) => Ok(()),
        Err(errno) => Err(failed("grow the file system at", path, errno.into())),
    }
}

fn failed(action: &str, path: &Path, error: io::Error) -> ErrorBody {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::StorageFull => ErrorCode::NoSpace,
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => ErrorCode::NotADirectory,
        _ => ErrorCode::Io,
    };
    ErrorBody::new(code, format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_mount_of_a_device_is_found() {
        let table = "/dev/vda / ext4 rw 0 0\n/dev/vdb /old ext4 rw 0 0\n/dev/vdb /my\\040data ext4 rw 0 0\n";
        assert_eq!(mounted_at(table, "/dev/vdb"), Some("/my data".into()));
        assert_eq!(mounted_at(table, "/dev/vda"), Some("/".into()));
        assert_eq!(mounted_at(table, "/dev/vdc"), None);
    }

    #[test]
    fn a_missing_volume_disk_is_reported() {
        let mount = VolumeMount { serial: "no such".to_owned(), path: "/x".into(), read_only: false };
        assert_eq!(mount_volume(&mount).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(grow("no such", 1).unwrap_err().code, ErrorCode::NotFound);
    }
}
