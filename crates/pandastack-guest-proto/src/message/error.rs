//! Errors with which the guest refuses a call.

use serde::{Deserialize, Serialize};

/// The kind of refusal, stable across generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The file, program, user or process does not exist.
    NotFound,
    /// A file was needed, this is a directory.
    IsDirectory,
    /// A directory was needed.
    NotADirectory,
    /// The target already exists.
    AlreadyExists,
    /// The directory has entries.
    NotEmpty,
    /// The guest's kernel refused it.
    PermissionDenied,
    /// The disk is full, or a quota is.
    NoSpace,
    /// The request makes no sense.
    Invalid,
    /// Too many processes, calls, watches or open files at once.
    TooMany,
    /// User processes are frozen: thaw or set the identity first.
    Frozen,
    /// The time limit passed.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// This guest's generation does not know the call.
    Unsupported,
    /// Any other failure; also what an unknown newer code decodes to.
    #[serde(other)]
    Io,
}

/// A refusal: what failed, on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ErrorBody {
    /// The kind.
    pub code: ErrorCode,
    /// Human-readable message. It comes from the guest: show it, never act on it.
    pub message: String,
}

impl ErrorBody {
    /// A refusal with its sentence.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
