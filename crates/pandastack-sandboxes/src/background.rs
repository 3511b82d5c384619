//! Work that outlives its request: its tasks, its shutdown, and the marks that exclude conflicting work.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pandastack_agent_client::request_id;
use pandastack_types::{Error, Result};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::in_flight::{InFlight, InFlightMark, OperationKey};

/// Background work of a server. Clones share everything.
#[derive(Clone)]
pub struct Background {
    /// Tasks that shutdown waits for.
    pub tasks: TaskTracker,
    /// Cancelled when the server stops.
    pub shutdown: CancellationToken,
    /// Operations in progress in this process.
    pub(crate) in_flight: Arc<InFlight>,
}

impl Background {
    /// No work yet; `shutdown` ends it.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { tasks: TaskTracker::new(), shutdown, in_flight: Arc::default() }
    }

    /// Runs work that finishes even if the caller is dropped, and that shutdown waits for.
    pub async fn owned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work = request_id::carry(work);
        let task = self.tasks.spawn(work.instrument(tracing::Span::current()));
        task.await.unwrap_or_else(|failed| Err(Error::internal(failed)))
    }

    /// Marks something as being worked on; `None` when it is marked already.
    pub fn mark(&self, key: &OperationKey) -> Option<InFlightMark> {
        self.in_flight.mark(key)
    }

    /// Marks something, waiting for an earlier mark to end.
    pub async fn mark_within(&self, key: &OperationKey, wait: Duration) -> Option<InFlightMark> {
        self.in_flight.mark_within(key, wait).await
    }
}
