//! Errors of the store.

use pandastack_types::{TransitionRefused, WorkspaceId};

/// `SQLITE_FULL`: <https://www.sqlite.org/rescode.html#full>; `disk_full` of PostgreSQL's appendix A.
const DISK_FULL: [&str; 2] = ["13", "53100"];

/// Result of a store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Reason why the store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The row does not exist, or belongs to another workspace.
    #[error("{what} `{id}` not found")]
    NotFound {
        /// Kind of resource.
        what: &'static str,
        /// The requested value.
        id: String,
    },
    /// The state does not allow it.
    #[error(transparent)]
    Refused(#[from] TransitionRefused),
    /// A workspace has as many as it may have.
    #[error("the limit of {limit} {what} is reached; delete some first")]
    Quota {
        /// Kind of resource.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The operator allows less.
    #[error(
        "quota `{name}` exceeded: the limit is {limit}, {used} are in use and this needs {wanted} more; \
         delete something, or raise it with `pandastack quota set`"
    )]
    OverQuota {
        /// The quota.
        name: &'static str,
        /// The limit.
        limit: u64,
        /// Amount in use.
        used: u64,
        /// Additional amount requested.
        wanted: u64,
    },
    /// The operator suspended the workspace, or it is being deleted.
    #[error(
        "workspace `{workspace}` is suspended{}; nothing in it is lost; ask the operator of this \
         installation",
        reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    )]
    Closed {
        /// The workspace.
        workspace: WorkspaceId,
        /// The operator's reason.
        reason: Option<String>,
    },
    /// A resource of that name exists.
    #[error("{what} `{id}` already exists; choose another name")]
    Exists {
        /// Kind of resource, with its article.
        what: &'static str,
        /// The name that is taken.
        id: String,
    },
    /// The resource is in use, or its name is taken.
    #[error("{0}")]
    Held(String),
    /// The deletion would leave the workspace without a key that can create others.
    #[error("`{prefix}` is the last {kind} key of this workspace; create another before you delete it")]
    LastToken {
        /// The key.
        prefix: String,
        /// Kind of the key.
        kind: &'static str,
    },
    /// The key that made the request was revoked or expired before its change was written.
    #[error("key `{prefix}...` was revoked or has expired; use another key")]
    Revoked {
        /// The public part of the key.
        prefix: String,
    },
    /// A stored value cannot be read.
    #[error("the stored {what} cannot be read; a newer version may have written the database")]
    Corrupt {
        /// Kind of value that cannot be read.
        what: &'static str,
        /// Reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk under the database is full.
    #[error("the disk that holds the database is full; free some space and try again")]
    DiskFull,
    /// The database failed.
    #[error("the database query failed")]
    Database(#[source] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("the database schema could not be migrated")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

impl StoreError {
    /// The database did not answer in time.
    pub fn timed_out() -> Self {
        Self::Database(sqlx::Error::PoolTimedOut)
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(source: sqlx::Error) -> Self {
        let code = source.as_database_error().and_then(|error| error.code());
        match code {
            Some(code) if DISK_FULL.contains(&code.as_ref()) => Self::DiskFull,
            _ => Self::Database(source),
        }
    }
}
