//! The ext4 disk a tree is built on.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use crate::command::Program;
use crate::error::ImageError;
use crate::store;

/// Small enough not to matter in the image, large enough for package installs inside a sandbox.
const JOURNAL_MIB: u32 = 32;

/// An unmounted image file in the work directory.
pub(super) struct Disk {
    image: PathBuf,
    root: PathBuf,
}

impl Disk {
    /// A new, empty file system.
    pub(super) fn new(work: &Path, disk_gib: u64) -> Result<Disk, ImageError> {
        let disk = Disk::in_work(work);
        let file = OpenOptions::new().write(true).create_new(true).open(&disk.image);
        let sized = file.and_then(|file| file.set_len(disk_gib << 30));
        sized.map_err(ImageError::io("create", &disk.image))?;
        Program::new("mkfs.ext4", "format the image")
            .args(["-q", "-F", "-L", "rootfs"])
            // Reserve no blocks for root, and leave nothing for the guest to initialize in the
            // background: that would dirty every sandbox's disk a few seconds after its first
            // mount.
            .args(["-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,discard,root_owner=0:0"])
            .args(["-J", &format!("size={JOURNAL_MIB}")])
            .arg(&disk.image)
            .run()?;
        Ok(disk)
    }

    /// A copy of the parent's file system, enlarged if requested.
    pub(super) fn from_parent(work: &Path, parent: &Path, disk_gib: u64) -> Result<Disk, ImageError> {
        let disk = Disk::in_work(work);
        store::copy_file(parent, &disk.image)
            .map_err(ImageError::io("copy the parent's image to", &disk.image))?;
        let length = std::fs::metadata(&disk.image).map_err(ImageError::io("examine", &disk.image))?.len();
        let wanted = disk_gib << 30;
        if wanted < length {
            let why = format!("disk_gib is {disk_gib}, less than its parent's {}", length >> 30);
            return Err(ImageError::malformed("the recipe", why));
        }
        if wanted > length {
            let file = OpenOptions::new().write(true).open(&disk.image);
            let sized = file.and_then(|file| file.set_len(wanted));
            sized.map_err(ImageError::io("enlarge", &disk.image))?;
            // resize2fs insists on a check that is recorded as later than the last mount.
            Program::new("e2fsck", "check the parent's image").args(["-f", "-p"]).arg(&disk.image).run()?;
            Program::new("resize2fs", "enlarge the image").arg(&disk.image).run()?;
        }
        Ok(disk)
    }

    fn in_work(work: &Path) -> Disk {
        Disk { image: work.join("image.ext4"), root: work.join("root") }
    }

    /// Mounts it. Needs the build's own mount namespace.
    pub(super) fn mount(&self) -> Result<DiskMount<'_>, ImageError> {
        std::fs::create_dir_all(&self.root).map_err(ImageError::io("create", &self.root))?;
        Program::new("mount", "mount the image being built")
            // A build that dies is thrown away: no barrier needs to be paid for.
            .args(["-t", "ext4", "-o", "loop,noatime,nobarrier"])
            .arg(&self.image)
            .arg(&self.root)
            .run()?;
        Ok(DiskMount { disk: self, is_mounted: true })
    }

    pub(super) fn into_image(self) -> PathBuf {
        self.image
    }
}

/// A mounted disk; unmounted when dropped.
pub(super) struct DiskMount<'a> {
    disk: &'a Disk,
    is_mounted: bool,
}

impl DiskMount<'_> {
    pub(super) fn root(&self) -> &Path {
        &self.disk.root
    }

    /// Discards freed blocks, unmounts and checks. Returns the bytes in use.
    pub(super) fn seal(mut self) -> Result<u64, ImageError> {
        let stat = rustix::fs::statvfs(self.root())
            .map_err(|error| ImageError::io("measure", &self.disk.root)(error.into()))?;
        Program::new("fstrim", "trim the image").arg(self.root()).run()?;
        self.unmount()?;
        check(&self.disk.image)?;
        Ok((stat.f_blocks - stat.f_bfree).saturating_mul(stat.f_frsize))
    }

    fn unmount(&mut self) -> Result<(), ImageError> {
        self.is_mounted = false;
        Program::new("umount", "unmount the image").arg(&self.disk.root).run()
    }
}

impl Drop for DiskMount<'_> {
    fn drop(&mut self) {
        if self.is_mounted {
            // The build has failed already, and remaining mounts disappear with the namespace.
            let _ = Program::new("umount", "unmount the image").arg("--lazy").arg(&self.disk.root).run();
        }
    }
}

/// Fails unless the file system is clean.
fn check(image: &Path) -> Result<(), ImageError> {
    Program::new("e2fsck", "check the image").args(["-f", "-n"]).arg(image).run()
}
