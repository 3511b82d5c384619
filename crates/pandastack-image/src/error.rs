//! Errors of fetching and building kernels and root file systems.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Kind of an [`ImageError`], which decides how a caller handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The disk is full.
    NoSpace,
    /// The host lacks a program, a permission or a setting; the message names it.
    Host,
    /// A recipe or lock is wrong; building again changes nothing.
    Recipe,
    /// A downloaded file differs from the lock.
    Lock,
    /// A step failed; the cause may pass (network, mirror).
    Step,
}

/// A failed fetch or build.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
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
    /// A program of the host could not be started.
    #[error("cannot {purpose}: cannot run {program}; install it (`pandastack doctor` names the package)")]
    Spawn {
        /// The program.
        program: String,
        /// Its purpose, as an infinitive.
        purpose: String,
        /// Error of the operating system.
        #[source]
        reason: io::Error,
    },
    /// A program of the host failed.
    #[error("cannot {purpose}: {program} failed with {status}: {said}")]
    Program {
        /// The program.
        program: String,
        /// Its purpose, as an infinitive.
        purpose: String,
        /// Result.
        status: ExitStatus,
        /// The end of its output.
        said: String,
    },
    /// Building needs rights this process lacks.
    #[error("cannot {purpose}; this needs root and permission to mount: run it with sudo")]
    NotRoot {
        /// The purpose, as an infinitive.
        purpose: &'static str,
        /// Error of the operating system.
        #[source]
        reason: io::Error,
    },
    /// The host's apt knows no Debian archive to take packages from.
    #[error(
        "no Debian archive in this host's apt configuration; set PANDASTACK_DEBIAN_MIRROR to the address of one \
         (and PANDASTACK_DEBIAN_SECURITY_MIRROR to its security archive)"
    )]
    NoMirror,
    /// A recipe, lock or package file does not have the form it must have.
    #[error("{what} is malformed: {why}")]
    Malformed {
        /// The file.
        what: String,
        /// Reason why it is invalid.
        why: String,
    },
    /// An archive with a prebuilt artifact cannot be used.
    #[error("the archive {} is damaged: {why}; replace or delete it", path.display())]
    DamagedArchive {
        /// The archive.
        path: PathBuf,
        /// Reason why it cannot be used.
        why: String,
    },
    /// A downloaded file is not the one in the lock.
    #[error(
        "{what} does not match its lock: {why}; regenerate the lock with `cargo xtask template lock` if that is intended"
    )]
    LockMismatch {
        /// The package or file.
        what: String,
        /// The difference.
        why: String,
    },
    /// Debian packages differ from the lock and the caller requires exactly the lock.
    #[error("the mirror no longer carries {} locked package(s), first {}; regenerate the lock or build without --locked", drifted.len(), drifted.first().map_or("", String::as_str))]
    Drifted {
        /// `name locked -> current`, one per package.
        drifted: Vec<String>,
    },
    /// The build thread ended without an answer.
    #[error("the build of {0} stopped unexpectedly; this is a bug, please report it with the log")]
    Panicked(String),
}

impl ImageError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError + use<> {
        let path = path.to_path_buf();
        move |reason| ImageError::Io { action, path, reason }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: impl ToString) -> ImageError {
        ImageError::Malformed { what: what.into(), why: why.to_string() }
    }

    /// Kind of the error, by which callers decide what to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ImageError::Io { reason, .. } => match reason.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
                io::ErrorKind::PermissionDenied => ErrorKind::Host,
                _ => ErrorKind::Step,
            },
            ImageError::Program { said, .. } if said.contains("No space left on device") => {
                ErrorKind::NoSpace
            }
            ImageError::Program { .. } | ImageError::Panicked(_) => ErrorKind::Step,
            ImageError::Spawn { .. }
            | ImageError::NotRoot { .. }
            | ImageError::NoMirror
            | ImageError::DamagedArchive { .. } => ErrorKind::Host,
            ImageError::Malformed { .. } => ErrorKind::Recipe,
            ImageError::LockMismatch { .. } | ImageError::Drifted { .. } => ErrorKind::Lock,
        }
    }
}
