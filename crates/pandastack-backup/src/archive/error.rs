//! Errors of the archive.

use crate::limits::STORE_WAIT;
use crate::seal::SealError;

/// Errors of the archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The address names no store, or a setting of it is wrong.
    #[error(
        "the archive's address {url} cannot be used: {reason}; give file:///folder, s3://, gs:// or az://bucket/folder, and the \
         variables of the store as docs/reference/backup-archive.md names them"
    )]
    Address {
        /// The address.
        url: String,
        /// Reason.
        reason: String,
    },
    /// The id of a database would not be one folder.
    #[error("`{0}` is not a valid database id for an archive; use letters, digits, - and _")]
    Database(String),
    /// The store failed.
    #[error("the archive could not {act} {name}")]
    Store {
        /// The action.
        act: &'static str,
        /// On which object.
        name: String,
        /// Reason.
        #[source]
        reason: object_store::Error,
    },
    /// The store takes too long.
    #[error("the archive could not {act} {name} within {wait_s} s", wait_s = STORE_WAIT.as_secs())]
    Late {
        /// The action.
        act: &'static str,
        /// On which object.
        name: String,
    },
    /// An object has unexpected contents.
    #[error("{name} in the archive cannot be used")]
    Sealed {
        /// The object.
        name: String,
        /// Reason.
        #[source]
        reason: SealError,
    },
    /// A different object has that name.
    #[error(
        "the archive already has different content at {0}; two databases must not share an archive folder"
    )]
    Conflict(String),
    /// The program ends.
    #[error("the operation on {0} was cancelled because the server is stopping")]
    GivenUp(String),
}

impl ArchiveError {
    /// The object is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, ArchiveError::Store { reason: object_store::Error::NotFound { .. }, .. })
    }
}
