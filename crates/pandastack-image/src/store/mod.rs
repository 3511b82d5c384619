//! The copy-on-write store for disks, memory files and snapshots.
//!
//! One directory on a file system that shares extents between files. If the data directory's own
//! file system cannot, a sparse XFS image beside it is created and mounted
//! ([`Cloning::ReflinkInLoop`]). Without the rights for that, files are copied with their holes,
//! and the reason is kept for `doctor` ([`Cloning::SparseCopy`]).
//!
//! ```text
//! <data_dir>/store/            Store::root(): what callers lay out as they like
//! <data_dir>/store/.staging/   directories being written
//! <data_dir>/store/.trash/     directories being deleted
//! ```
//!
//! Invariants:
//! - Outside `SparseCopy`, [`Store::clone_file`] shares extents or fails. It never copies.
//! - Nothing is added once the store, or the file system under it, is down to its reserve: callers get
//!   [`StoreErrorKind::NoSpace`] while every machine still runs.
//! - Opening is idempotent: after a crash or reboot the image is mounted again, never remade.
//!
//! The agent decides what files mean and when they are deleted.

mod clone;
mod error;
mod loop_image;
mod space;
mod staging;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

pub use error::{StoreError, StoreErrorKind};
use loop_image::LoopImage;
use pandastack_types::chain;
pub use space::{FileSystemSpace, INNER_RESERVE_BYTES, OUTER_RESERVE_BYTES, StoreSpace};
pub use staging::Staging;

/// Mode of [`Store::clone_file`] on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cloning {
    /// The data directory's file system shares extents.
    Reflink,
    /// A loop-mounted XFS image does.
    ReflinkInLoop {
        /// Reason why the data directory's own file system cannot be used.
        reason: String,
    },
    /// Files are copied, keeping holes: slower and larger, but correct.
    SparseCopy {
        /// Reason for the fallback, and what to do about it.
        reason: String,
    },
}

/// An open store. Cheap to clone; dropping it changes nothing on disk.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    cloning: Cloning,
    image: LoopImage,
}

impl Store {
    /// Opens the store of `data_dir`, preparing it on first use.
    ///
    /// Concurrent callers, also of other processes, take turns. Space missing for the image is an error; rights or
    /// programs missing for it are not, see [`Store::cloning`].
    pub fn open(data_dir: &Path) -> Result<Store, StoreError> {
        std::fs::create_dir_all(data_dir).map_err(StoreError::io("create", data_dir))?;
        // Without an absolute path the mount would depend on the caller's working directory.
        let data_dir = data_dir.canonicalize().map_err(StoreError::io("resolve", data_dir))?;
        let _turn = lock_setup(&data_dir)?;
        let image = LoopImage::of(&data_dir);
        let root = data_dir.join("store");
        let cloning = prepare(&root, &image)?;
        clone::own_small_extents(&root);
        Ok(Store { root, cloning, image })
    }

    /// The directory in which callers keep their files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The cloning mode here, and its reason.
    pub fn cloning(&self) -> &Cloning {
        &self.cloning
    }

    /// Creates the file `dst` with the contents of `src`, copy-on-write.
    ///
    /// The kernel first writes out dirty pages of `src`: sync a file before the moment its clone must be quick.
    pub fn clone_file(&self, src: &Path, dst: &Path) -> Result<(), StoreError> {
        let source = File::open(src).map_err(StoreError::io("open", src))?;
        if let Cloning::SparseCopy { .. } = self.cloning {
            self.require(allocated_bytes(&source, src)?)?;
            return clone::copy_sparse(&source, dst).map_err(StoreError::io("copy into", dst));
        }
        self.require(0)?;
        clone::share_extents(&source, dst).map_err(|reason| StoreError::Clone {
            src: src.to_path_buf(),
            dst: dst.to_path_buf(),
            reason,
        })
    }

    /// Like [`Store::clone_file`], into an existing, empty file: processes that have it open see
    /// the contents appear.
    pub fn clone_over(&self, src: &Path, dst: &Path) -> Result<(), StoreError> {
        let source = File::open(src).map_err(StoreError::io("open", src))?;
        let target = OpenOptions::new().write(true).open(dst).map_err(StoreError::io("open", dst))?;
        if let Cloning::SparseCopy { .. } = self.cloning {
            self.require(allocated_bytes(&source, src)?)?;
            return clone::copy_data(&source, &target).map_err(StoreError::io("copy into", dst));
        }
        self.require(0)?;
        rustix::fs::ioctl_ficlone(&target, &source).map_err(|error| StoreError::Clone {
            src: src.to_path_buf(),
            dst: dst.to_path_buf(),
            reason: error.into(),
        })
    }

    /// Copies a file from anywhere (the image cache, say) to the new file `dst`, in few extents:
    /// long holes stay, short ones are filled. Deliberately a copy, even where a clone would work:
    /// every machine's disk is cloned from it, and a clone is as slow as its source is fragmented.
    pub fn import_file(&self, src: &Path, dst: &Path) -> Result<(), StoreError> {
        let source = File::open(src).map_err(StoreError::io("open", src))?;
        self.require(allocated_bytes(&source, src)?)?;
        clone::copy_sparse(&source, dst).map_err(StoreError::io("copy into", dst))
    }

    /// Creates the file `path` of `len_bytes`, all hole.
    pub fn create_sparse(&self, path: &Path, len_bytes: u64) -> Result<File, StoreError> {
        self.require(0)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(StoreError::io("create", path))?;
        if let Err(reason) = file.set_len(len_bytes) {
            let _ = std::fs::remove_file(path);
            return Err(StoreError::Io { action: "size", path: path.to_path_buf(), reason });
        }
        Ok(file)
    }

    /// Free space here and on the file system underneath.
    pub fn free_space(&self) -> Result<StoreSpace, StoreError> {
        let inner = space::measure(&self.root).map_err(StoreError::io("measure", &self.root))?;
        let outer = match self.cloning {
            Cloning::ReflinkInLoop { .. } => Some(
                space::measure(self.image.image()).map_err(StoreError::io("measure", self.image.image()))?,
            ),
            _ => None,
        };
        Ok(StoreSpace { inner, outer })
    }

    /// Fails with [`StoreErrorKind::NoSpace`] unless `needed_bytes` can be written without using a
    /// reserve.
    pub fn require(&self, needed_bytes: u64) -> Result<(), StoreError> {
        let space = self.free_space()?;
        let available_bytes = space.available_bytes();
        if available_bytes > 0 && available_bytes >= needed_bytes {
            return Ok(());
        }
        let path = if space.outer_limits() { self.image.image() } else { &self.root };
        Err(StoreError::NoSpace {
            path: path.to_path_buf(),
            available_bytes,
            needed_bytes: needed_bytes.max(1),
        })
    }

    /// A new private directory that [`Staging::publish`] moves to its final path atomically.
    pub fn stage(&self) -> Result<Staging, StoreError> {
        self.require(0)?;
        Staging::new_in(&self.root.join(".staging"))
    }

    /// Takes a file or directory of the store out of the tree immediately, then deletes it. Missing is
    /// fine.
    pub fn remove(&self, path: &Path) -> Result<(), StoreError> {
        staging::remove(path, &self.root.join(".trash"))
    }

    /// Deletes files that a crash left half written or half deleted. Only the store's one owner may call
    /// it, at its start.
    pub fn sweep(&self) -> Result<(), StoreError> {
        for leftover in [".staging", ".trash"].map(|name| self.root.join(name)) {
            match std::fs::remove_dir_all(&leftover) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io("sweep", &leftover)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Unmounts a loop-mounted store. Fails while a file in it is open; does nothing for the other kinds.
    pub fn unmount(&self) -> Result<(), StoreError> {
        match self.cloning {
            Cloning::ReflinkInLoop { .. } => self.image.unmount(),
            _ => Ok(()),
        }
    }
}

fn prepare(root: &Path, image: &LoopImage) -> Result<Cloning, StoreError> {
    if image.exists() {
        image.mount()?;
        image.grow()?;
        clone::probe(root).map_err(StoreError::io("clone a file in", root))?;
        let reason = "the data directory's own file system has no reflink".to_owned();
        return Ok(Cloning::ReflinkInLoop { reason });
    }
    std::fs::create_dir_all(root).map_err(StoreError::io("create", root))?;
    let refusal = match clone::probe(root) {
        Ok(()) => return Ok(Cloning::Reflink),
        Err(error) => format!("no reflink in {}: {error}", root.display()),
    };
    if holds_file(root)? {
        let reason = format!(
            "{refusal}; files copied earlier are kept. Use a new data directory to get a reflink store"
        );
        return Ok(Cloning::SparseCopy { reason });
    }
    match image.make().and_then(|()| image.mount()) {
        Ok(()) => {
            clone::probe(root).map_err(StoreError::io("clone a file in", root))?;
            Ok(Cloning::ReflinkInLoop { reason: refusal })
        }
        Err(error) if error.kind() == StoreErrorKind::NoSpace => Err(error),
        Err(error) => {
            // An image this host cannot mount must not hide the plain directory at the next start.
            let _ = std::fs::remove_file(image.image());
            let error = chain(&error);
            let reason =
                format!("{refusal}; {error}. Run as root with xfsprogs installed, or use XFS or btrfs");
            Ok(Cloning::SparseCopy { reason })
        }
    }
}

/// Serialises openers of one data directory for as long as the file lives.
fn lock_setup(data_dir: &Path) -> Result<File, StoreError> {
    let path = data_dir.join(".store.lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(StoreError::io("open", &path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| StoreError::io("lock", &path)(error.into()))?;
    Ok(file)
}

/// Returns whether `dir` holds any file. A start that failed on a host without the store's programs
/// leaves directories, and those must not keep the store from being made well once the programs are
/// there.
fn holds_file(dir: &Path) -> Result<bool, StoreError> {
    for entry in std::fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        let is_dir = entry.file_type().map_err(StoreError::io("examine", &entry.path()))?.is_dir();
        if !is_dir || holds_file(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Copies a file outside any store, sharing extents where the file system can and keeping holes where not.
pub(crate) fn copy_file(src: &Path, dst: &Path) -> std::io::Result<()> {
    let source = File::open(src)?;
    clone::share_extents(&source, dst).or_else(|_| clone::copy_sparse(&source, dst))
}

fn allocated_bytes(file: &File, path: &Path) -> Result<u64, StoreError> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = file.metadata().map_err(StoreError::io("examine", path))?;
    Ok(metadata.blocks().saturating_mul(512))
}
