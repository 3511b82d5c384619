//! Converts a store error into the error of its operation.

use pandastack_types::{Error, ErrorCode};

use crate::StoreError;

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NotFound { .. } => ErrorCode::NotFound,
            StoreError::Refused(_)
            | StoreError::LastToken { .. }
            | StoreError::Exists { .. }
            | StoreError::Held(_) => ErrorCode::Conflict,
            StoreError::Quota { .. } | StoreError::OverQuota { .. } => ErrorCode::QuotaExceeded,
            StoreError::Revoked { .. } => ErrorCode::Unauthorized,
            StoreError::Closed { .. } => ErrorCode::WorkspaceSuspended,
            StoreError::DiskFull => ErrorCode::DiskFull,
            StoreError::Corrupt { .. } | StoreError::Database(_) | StoreError::Migrate(_) => {
                return Self::internal(error);
            }
        };
        Self::new(code, error.to_string())
    }
}
