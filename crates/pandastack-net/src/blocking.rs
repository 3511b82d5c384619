//! Blocking work for async callers.

use crate::error::{NetError, Result};

/// Runs `work` on a thread that may block. A panic in `work` is propagated to the caller.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // Only a runtime that shuts down cancels blocking work before it starts.
        Err(_) => Err(NetError::Closed),
    }
}
