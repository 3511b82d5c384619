//! Calls on their way into the store: written behind the answer, in batches, by one task.
//!
//! A commit for each call would cost more than most calls. The queue is bounded and a full one makes calls wait; what a crash
//! can lose is the batch under way. Calls of type `Event` are not among them: the queue writes these itself.

use std::time::Duration;

use pandastack_types::limits::AUDIT_QUEUE_MAX;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::store::Store;
use crate::store::functions::RunRecord;

/// Calls written in one transaction.
const BATCH_MAX: usize = 256;
/// How long the task waits after a batch that could not be written.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Calls on their way.
pub(crate) struct RunLog {
    sender: mpsc::Sender<RunRecord>,
    receiver: Mutex<mpsc::Receiver<RunRecord>>,
}

impl Default for RunLog {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(AUDIT_QUEUE_MAX);
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl RunLog {
    /// Has a call written down.
    pub(crate) async fn put(&self, record: RunRecord) {
        if self.sender.send(record).await.is_err() {
            tracing::error!("the log of calls is closed; a call was not written down");
        }
    }

    /// Writes until told to stop, then what is left. Only one task does this.
    pub(crate) async fn write(&self, store: &dyn Store, stop: &CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let stopped = tokio::select! {
                biased;
                count = receiver.recv_many(&mut batch, BATCH_MAX) => count == 0,
                () = stop.cancelled() => true,
            };
            while let Err(error) = store.put_runs(&batch).await {
                tracing::error!(%error, calls = batch.len(), "calls could not be written down; trying again");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY_AFTER) => {}
                }
            }
            batch.clear();
            if stopped && receiver.is_empty() {
                return;
            }
        }
    }
}
