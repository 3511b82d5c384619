//! A reflink file system on a host that has none: a sparse XFS image, loop-mounted.
//!
//! ```text
//! <data_dir>/store.xfs.making   being formatted; a crash leaves it, the next start creates it again
//! <data_dir>/store.xfs          complete: only ever appears by rename
//! <data_dir>/store/             where it is mounted
//! ```
//!
//! The loop device is made by mount(8), which marks it to vanish with the mount: nothing is left after
//! `umount`. Deleted data is returned to the outer file system (`discard` punches holes into the image).

use pandastack_types::chain;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::space::{self, OUTER_RESERVE_BYTES};
use crate::command::Program;

/// Part of the outer file system's free space that a new image may grow into, in percent. The image is sparse, so
/// this is a ceiling and not a cost.
const SHARE_PERCENT: u64 = 90;

/// Smallest image size: below it, XFS cannot be created or is too small for machines.
const IMAGE_BYTES_MIN: u64 = 2 << 30;

/// An image is grown when its share of the outer file system has become larger by at least this much.
const GROW_STEP_BYTES: u64 = 4 << 30;

/// The image holds every machine's disk and memory, and a reader of the file bypasses the modes
/// inside it.
const IMAGE_MODE: u32 = 0o600;

/// The image file beside a data directory, and its mount point.
#[derive(Debug, Clone)]
pub(super) struct LoopImage {
    image: PathBuf,
    mount_point: PathBuf,
}

impl LoopImage {
    pub(super) fn of(data_dir: &Path) -> LoopImage {
        LoopImage { image: data_dir.join("store.xfs"), mount_point: data_dir.join("store") }
    }

    pub(super) fn exists(&self) -> bool {
        self.image.exists()
    }

    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// Formats a new image. It gets its name only when complete.
    pub(super) fn make(&self) -> Result<(), StoreError> {
        let making = self.image.with_extension("xfs.making");
        let parent = self.image.parent().unwrap_or(Path::new("/"));
        let outer = space::measure(parent).map_err(StoreError::io("measure", parent))?;
        let bytes = image_bytes(outer.available_bytes);
        if bytes < IMAGE_BYTES_MIN {
            return Err(StoreError::NoSpace {
                path: parent.to_path_buf(),
                available_bytes: outer.available_bytes,
                needed_bytes: (IMAGE_BYTES_MIN + OUTER_RESERVE_BYTES) * 100 / SHARE_PERCENT,
            });
        }
        let _ = std::fs::remove_file(&making);
        let file = OpenOptions::new().write(true).create_new(true).mode(IMAGE_MODE).open(&making);
        let file = file.map_err(StoreError::io("create", &making))?;
        file.set_len(bytes).map_err(StoreError::io("size", &making))?;
        let formatted = Program::new("mkfs.xfs", "format the store's image")
            .args(["-q", "-K", "-f", "-m", "reflink=1"])
            .arg(&making)
            .run();
        if let Err(error) = formatted {
            let _ = std::fs::remove_file(&making);
            return Err(program_error("format", &self.image)(error));
        }
        file.sync_all().map_err(StoreError::io("make durable", &making))?;
        std::fs::rename(&making, &self.image).map_err(StoreError::io("publish", &self.image))?;
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(StoreError::io("make durable", parent))
    }

    /// Mounts the image unless it is mounted already.
    pub(super) fn mount(&self) -> Result<(), StoreError> {
        std::fs::create_dir_all(&self.mount_point).map_err(StoreError::io("create", &self.mount_point))?;
        // Images made by earlier versions were open to everybody.
        std::fs::set_permissions(&self.image, Permissions::from_mode(IMAGE_MODE))
            .map_err(StoreError::io("set permissions of", &self.image))?;
        if self.is_mounted()? {
            return Ok(());
        }
        Program::new("mount", "mount the store's image")
            .args(["-t", "xfs", "-o", "loop,discard,noatime,nodev,nosuid"])
            .arg(&self.image)
            .arg(&self.mount_point)
            .run()
            .map_err(program_error("mount", &self.image))?;
        Ok(())
    }

    /// Unmounts the image if it is mounted, which also removes the loop device.
    pub(super) fn unmount(&self) -> Result<(), StoreError> {
        if !self.is_mounted()? {
            return Ok(());
        }
        Program::new("umount", "unmount the store")
            .arg(&self.mount_point)
            .run()
            .map_err(program_error("unmount", &self.mount_point))?;
        Ok(())
    }

    /// Enlarges a mounted image when the outer file system has room for a clearly larger one.
    pub(super) fn grow(&self) -> Result<(), StoreError> {
        let io = StoreError::io("measure", &self.image);
        let metadata = std::fs::metadata(&self.image).map_err(io)?;
        let outer = space::measure(&self.image).map_err(StoreError::io("measure", &self.image))?;
        let used_bytes = metadata.blocks() * 512;
        let wanted = image_bytes(outer.available_bytes + used_bytes);
        if wanted < metadata.len() + GROW_STEP_BYTES {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&self.image);
        let resized = file.and_then(|file| file.set_len(wanted));
        resized.map_err(StoreError::io("enlarge", &self.image))?;
        let device = self.loop_device()?;
        let fail = |error| program_error("enlarge", &self.image)(error);
        Program::new("losetup", "tell the loop device its new size")
            .arg("-c")
            .arg(device)
            .run()
            .map_err(fail)?;
        let fail = |error| program_error("enlarge", &self.image)(error);
        Program::new("xfs_growfs", "enlarge the store").arg(&self.mount_point).run().map_err(fail)?;
        Ok(())
    }

    /// A mount point is on another device than its parent.
    fn is_mounted(&self) -> Result<bool, StoreError> {
        let device = |path: &Path| {
            std::fs::metadata(path).map(|metadata| metadata.dev()).map_err(StoreError::io("examine", path))
        };
        if !self.mount_point.exists() {
            return Ok(false);
        }
        let parent = self.mount_point.parent().unwrap_or(Path::new("/"));
        Ok(device(&self.mount_point)? != device(parent)?)
    }

    fn loop_device(&self) -> Result<String, StoreError> {
        let found = Program::new("findmnt", "find the store's loop device")
            .args(["--noheadings", "--output", "SOURCE", "--target"])
            .arg(&self.mount_point)
            .read()
            .map_err(program_error("examine", &self.mount_point))?;
        Ok(found.trim().to_owned())
    }
}

fn image_bytes(outer_available_bytes: u64) -> u64 {
    let share = outer_available_bytes.saturating_sub(OUTER_RESERVE_BYTES) / 100 * SHARE_PERCENT;
    share & !((1 << 20) - 1)
}

fn program_error(action: &'static str, path: &Path) -> impl FnOnce(crate::ImageError) -> StoreError + use<> {
    let path = path.to_path_buf();
    move |error| StoreError::Program { action, path, message: chain(&error) }
}
