//! Operations in progress on this server. Reconciliation leaves them alone, on this server and on its
//! peers.

use std::collections::HashSet;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_types::{DatabaseId, SandboxId, SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Something that one process works on at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationKey {
    /// A sandbox that is being made, copied or moved.
    Sandbox(SandboxId),
    /// The removal of a sandbox's machine.
    Delete(SandboxId),
    /// A snapshot that is being taken.
    Snapshot(SnapshotId),
    /// A volume that is being made.
    Volume(VolumeId),
    /// An operation on a database.
    Database(DatabaseId),
    /// A base backup of a database.
    BaseBackup(DatabaseId),
    /// A trial restore of a database.
    Drill(DatabaseId),
}

/// As replicas tell each other. Ids of sandboxes, snapshots and volumes are unique among each other.
impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => id.fmt(f),
            Self::Snapshot(id) => id.fmt(f),
            Self::Volume(id) => id.fmt(f),
            Self::Delete(id) => write!(f, "delete {id}"),
            Self::Database(id) => write!(f, "database {id}"),
            Self::BaseBackup(id) => write!(f, "base backup {id}"),
            Self::Drill(id) => write!(f, "drill {id}"),
        }
    }
}

/// A set of marks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Marks(HashSet<String>);

impl Marks {
    /// Whether something is being worked on.
    pub fn contains(&self, mark: &OperationKey) -> bool {
        self.0.contains(&mark.to_string())
    }

    /// Adds those of another set.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// The marks of this process.
#[derive(Default)]
pub struct InFlight {
    marks: Mutex<Marks>,
    /// Notified when a mark is taken away.
    unmarked: Notify,
}

/// A mark that stays until this is dropped.
pub struct InFlightMark {
    set: Arc<InFlight>,
    mark: String,
}

impl InFlight {
    /// Marks something; `None` when it is marked already.
    pub fn mark(self: &Arc<Self>, mark: &OperationKey) -> Option<InFlightMark> {
        let mark = mark.to_string();
        let fresh = self.lock().0.insert(mark.clone());
        fresh.then(|| InFlightMark { set: Arc::clone(self), mark })
    }

    /// Marks something, waiting for an earlier mark to end.
    pub async fn mark_within(self: &Arc<Self>, mark: &OperationKey, wait: Duration) -> Option<InFlightMark> {
        let marked = async {
            loop {
                let mut unmarked = pin!(self.unmarked.notified());
                unmarked.as_mut().enable();
                if let Some(marked) = self.mark(mark) {
                    return marked;
                }
                unmarked.await;
            }
        };
        tokio::time::timeout(wait, marked).await.ok()
    }

    /// All marks.
    pub fn marks(&self) -> Marks {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightMark {
    fn drop(&mut self) {
        self.set.lock().0.remove(&self.mark);
        self.set.unmarked.notify_waiters();
    }
}
