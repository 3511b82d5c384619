//! Records that one task writes in batches after the response.
//!
//! A commit for each call would cost more than most calls. The queue is bounded and a full one
//! makes calls wait, so no record is dropped for speed. A crash can lose the records that wait for
//! others ([`LINGER`]) and the batch in progress. Records that must not be lost are not put here,
//! but committed before the response. Readers wait for the records that were put before
//! ([`WriteBehind::flush`]), and so do not see that they are late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pandastack_types::limits::WRITE_BEHIND_MAX;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::functions::RunRecord;
use crate::ledger::AuditRecord;
use crate::{self as store, Store};

/// Records written in one transaction.
const BATCH_MAX: usize = 256;
/// Time that a record waits for others to share its batch.
const LINGER: Duration = Duration::from_millis(50);
/// Time that a reader waits for pending records; beyond it, the reader sees the records written so
/// far.
const FLUSH_WAIT: Duration = Duration::from_secs(5);
/// Pause after a batch that could not be written.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A record that may be written after the response.
#[async_trait]
pub trait WriteBehindItem: Sized + Send + Sync + 'static {
    /// Plural name of the records, for the log: "entries of the audit log".
    const WHAT: &'static str;

    /// Writes a batch, all or nothing.
    async fn insert(store: &dyn Store, batch: &[Self]) -> store::Result<()>;
}

/// Entries of the audit log.
#[async_trait]
impl WriteBehindItem for AuditRecord {
    const WHAT: &'static str = "entries of the audit log";

    async fn insert(store: &dyn Store, batch: &[Self]) -> store::Result<()> {
        store.insert_audit(batch).await
    }
}

/// Calls of functions. Those of type `Event` are not among them: the queue commits these itself.
#[async_trait]
impl WriteBehindItem for RunRecord {
    const WHAT: &'static str = "calls of functions";

    async fn insert(store: &dyn Store, batch: &[Self]) -> store::Result<()> {
        store.put_runs(batch).await
    }
}

/// Records of one kind on their way into the store.
pub struct WriteBehind<T> {
    sender: mpsc::Sender<T>,
    receiver: Mutex<mpsc::Receiver<T>>,
    /// Number of queued records.
    put: AtomicU64,
    /// Number of records that are in the store.
    written: watch::Sender<u64>,
    /// Wakes the task, because a reader waits for pending records.
    hurry: Notify,
}

impl<T> Default for WriteBehind<T> {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WRITE_BEHIND_MAX);
        let (put, written, hurry) = (AtomicU64::new(0), watch::Sender::new(0), Notify::new());
        Self { sender, receiver: Mutex::new(receiver), put, written, hurry }
    }
}

impl<T: WriteBehindItem> WriteBehind<T> {
    /// Queues a record, as soon as the queue has room.
    pub async fn put(&self, record: T) {
        match self.sender.reserve().await {
            Ok(place) => {
                // Counted first, so that a waiter's target includes every queued record.
                self.put.fetch_add(1, Ordering::SeqCst);
                place.send(record);
            }
            Err(_) => tracing::error!(what = T::WHAT, "cannot write a record: its queue is closed"),
        }
    }

    /// Waits until all records queued so far are in the store.
    pub async fn flush(&self) {
        let put = self.put.load(Ordering::SeqCst);
        let mut written = self.written.subscribe();
        if *written.borrow() < put {
            self.hurry.notify_one();
            let there = written.wait_for(|written| *written >= put);
            let _ = tokio::time::timeout(FLUSH_WAIT, there).await;
        }
    }

    /// Changes whenever records were written.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Writes until `stop`, then writes the rest. Only one task does this.
    pub async fn write(&self, store: &dyn Store, stop: &CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let stopped = tokio::select! {
                biased;
                count = receiver.recv_many(&mut batch, BATCH_MAX) => count == 0,
                () = stop.cancelled() => true,
            };
            if !stopped {
                tokio::select! {
                    () = tokio::time::sleep(LINGER) => {}
                    () = self.hurry.notified() => {}
                    () = stop.cancelled() => {}
                }
                while batch.len() < BATCH_MAX
                    && let Ok(record) = receiver.try_recv()
                {
                    batch.push(record);
                }
            }
            while let Err(error) = T::insert(store, &batch).await {
                tracing::error!(what = T::WHAT, %error, records = batch.len(), "cannot write a record; retrying");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY_AFTER) => {}
                }
            }
            self.written.send_modify(|written| *written += batch.len() as u64);
            batch.clear();
            if stopped && receiver.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sql::SqlStore;
    use pandastack_types::link::LinkKey;

    /// Records how many were written at once.
    struct Note(Arc<Mutex<Vec<usize>>>);

    #[async_trait]
    impl WriteBehindItem for Note {
        const WHAT: &'static str = "notes";

        async fn insert(_: &dyn Store, batch: &[Self]) -> store::Result<()> {
            if let Some(first) = batch.first() {
                first.0.lock().unwrap().push(batch.len());
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn buffered_records_are_batched_until_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let secret = LinkKey::new(&[7; 32]).unwrap();
        let store = SqlStore::sqlite(&dir.path().join("store.db"), &secret).await.unwrap();
        let (notes, stop, batches) = (WriteBehind::default(), CancellationToken::new(), Arc::default());
        let used = async {
            notes.flush().await;
            for _ in 0..3 {
                notes.put(Note(Arc::clone(&batches))).await;
            }
            notes.flush().await;
            assert_eq!(*batches.lock().unwrap(), [3]);
            notes.put(Note(Arc::clone(&batches))).await;
            stop.cancel();
        };
        tokio::join!(notes.write(&store, &stop), used);
        assert_eq!(*batches.lock().unwrap(), [3, 1], "what is left is written at the end");
    }
}
