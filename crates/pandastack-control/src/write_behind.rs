//! Records that are written behind the answer, in batches, by one task.
//!
//! A commit for each call would cost more than most calls. The queue is bounded and a full one makes calls wait, so nothing is
//! left out to be faster; what a crash can lose is the batch under way, some milliseconds of calls. What must not be
//! lost is not put here, but committed before it is answered.

use std::time::Duration;

use async_trait::async_trait;
use pandastack_types::limits::WRITE_BEHIND_MAX;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::store::{self, Store};

/// Records written in one transaction.
const BATCH_MAX: usize = 256;
/// How long the task waits after a batch that could not be written.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something that may be written behind the answer.
#[async_trait]
pub(crate) trait Behind: Sized + Send + Sync + 'static {
    /// What the records are, for the log: "entries of the audit log".
    const WHAT: &'static str;

    /// Writes a batch, all or nothing.
    async fn insert(store: &dyn Store, batch: &[Self]) -> store::Result<()>;
}

/// Records of one kind on their way into the store.
pub(crate) struct WriteBehind<T> {
    sender: mpsc::Sender<T>,
    receiver: Mutex<mpsc::Receiver<T>>,
}

impl<T> Default for WriteBehind<T> {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WRITE_BEHIND_MAX);
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl<T: Behind> WriteBehind<T> {
    /// Has a record written, as soon as there is room for it in the queue.
    pub(crate) async fn put(&self, record: T) {
        if self.sender.send(record).await.is_err() {
            tracing::error!(what = T::WHAT, "was not written: its queue is closed");
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
            while let Err(error) = T::insert(store, &batch).await {
                tracing::error!(what = T::WHAT, %error, records = batch.len(), "could not be written; trying again");
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
