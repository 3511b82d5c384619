//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

/// The answer a caller gives depends on this and on nothing else in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The disk is full, or so nearly that going on would break the store. Refuse the request (507).
    NoSpace,
    /// A path that must be new exists already.
    AlreadyExists,
    /// A path that must exist does not.
    NotFound,
    /// This file system cannot share extents between these two files.
    CannotClone,
    /// The host lacks a program or a right.
    Host,
    /// Anything else: an I/O error of the host.
    Io,
}

/// An operation on the store that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on one path failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action, as an infinitive.
        action: &'static str,
        /// Path of the failed operation.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        reason: io::Error,
    },
    /// Less space is left than the operation (or the reserve that keeps the store alive) needs.
    #[error(
        "disk full: {} has {available_bytes} bytes free and {needed_bytes} are needed; \
         delete sandboxes or snapshots, or free space on that file system",
        path.display()
    )]
    NoSpace {
        /// A path on the full file system.
        path: PathBuf,
        /// Bytes an unprivileged writer may still use there.
        available_bytes: u64,
        /// Bytes that had to be free.
        needed_bytes: u64,
    },
    /// FICLONE was refused for these two files.
    #[error(
        "cannot clone {} to {} without copying; both must lie on the same reflink file system",
        src.display(), dst.display()
    )]
    Clone {
        /// The file to share from.
        src: PathBuf,
        /// The file that was to be made.
        dst: PathBuf,
        /// Error of the operating system.
        #[source]
        reason: io::Error,
    },
    /// A program of the host that prepares the store failed.
    #[error("cannot {action} {}: {message}", path.display())]
    Program {
        /// The action, as an infinitive.
        action: &'static str,
        /// Path of the failed operation.
        path: PathBuf,
        /// The program's message, and the next step.
        message: String,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let path = path.to_path_buf();
        move |reason| StoreError::Io { action, path, reason }
    }

    /// Kind of the error, by which callers decide what to do.
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            StoreError::NoSpace { .. } => StoreErrorKind::NoSpace,
            StoreError::Program { .. } => StoreErrorKind::Host,
            StoreError::Io { reason, .. } => io_kind(reason),
            StoreError::Clone { reason, .. } => match io_kind(reason) {
                StoreErrorKind::Io => StoreErrorKind::CannotClone,
                known => known,
            },
        }
    }
}

fn io_kind(reason: &io::Error) -> StoreErrorKind {
    match reason.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::NoSpace,
        io::ErrorKind::AlreadyExists => StoreErrorKind::AlreadyExists,
        io::ErrorKind::NotFound => StoreErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => StoreErrorKind::Host,
        _ => StoreErrorKind::Io,
    }
}
