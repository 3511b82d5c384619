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

/// Key of an operation that runs once at a time.
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

/// A mark, as exchanged between replicas. Ids of sandboxes, snapshots and volumes are unique among
/// each other, so a mark of one of these is its id alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Mark {
    Resource(String),
    Delete(SandboxId),
    Database(DatabaseId),
    BaseBackup(DatabaseId),
    Drill(DatabaseId),
}

impl From<&OperationKey> for Mark {
    fn from(key: &OperationKey) -> Self {
        match key {
            OperationKey::Sandbox(id) => Self::Resource(id.to_string()),
            OperationKey::Snapshot(id) => Self::Resource(id.to_string()),
            OperationKey::Volume(id) => Self::Resource(id.to_string()),
            OperationKey::Delete(id) => Self::Delete(id.clone()),
            OperationKey::Database(id) => Self::Database(id.clone()),
            OperationKey::BaseBackup(id) => Self::BaseBackup(id.clone()),
            OperationKey::Drill(id) => Self::Drill(id.clone()),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(id) => id.fmt(f),
            Self::Delete(id) => write!(f, "delete {id}"),
            Self::Database(id) => write!(f, "database {id}"),
            Self::BaseBackup(id) => write!(f, "base backup {id}"),
            Self::Drill(id) => write!(f, "drill {id}"),
        }
    }
}

impl Mark {
    /// Reads a mark; `None` if it is of a kind that only other versions know.
    fn parse(text: &str) -> Option<Self> {
        Some(match text.rsplit_once(' ') {
            None => Self::Resource(text.to_owned()),
            Some(("delete", id)) => Self::Delete(id.parse().ok()?),
            Some(("database", id)) => Self::Database(id.parse().ok()?),
            Some(("base backup", id)) => Self::BaseBackup(id.parse().ok()?),
            Some(("drill", id)) => Self::Drill(id.parse().ok()?),
            Some(_) => return None,
        })
    }
}

/// A set of marks. On the wire, a list of their texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", from = "Vec<String>")]
pub struct Marks(HashSet<Mark>);

impl From<Marks> for Vec<String> {
    fn from(marks: Marks) -> Self {
        marks.0.iter().map(ToString::to_string).collect()
    }
}

impl From<Vec<String>> for Marks {
    fn from(texts: Vec<String>) -> Self {
        Self(texts.iter().filter_map(|text| Mark::parse(text)).collect())
    }
}

impl Marks {
    /// Returns whether an operation is in progress.
    pub fn contains(&self, key: &OperationKey) -> bool {
        self.0.contains(&key.into())
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
    /// Notified when a mark is removed.
    unmarked: Notify,
}

/// A mark that stays until this is dropped.
pub struct InFlightMark {
    set: Arc<InFlight>,
    mark: Mark,
}

impl InFlight {
    /// Marks something; `None` when it is marked already.
    pub fn mark(self: &Arc<Self>, key: &OperationKey) -> Option<InFlightMark> {
        let mark = Mark::from(key);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_marks_round_trip() {
        let database: DatabaseId = "d1".parse().unwrap();
        let keys = [
            OperationKey::Sandbox("a1".parse().unwrap()),
            OperationKey::Delete("a1".parse().unwrap()),
            OperationKey::Snapshot("b1".parse().unwrap()),
            OperationKey::Volume("c1".parse().unwrap()),
            OperationKey::Database(database.clone()),
            OperationKey::BaseBackup(database.clone()),
            OperationKey::Drill(database),
        ];
        let texts = ["a1", "delete a1", "b1", "c1", "database d1", "base backup d1", "drill d1"];
        for (key, text) in keys.iter().zip(texts) {
            assert_eq!(Mark::from(key).to_string(), text);
            let told: Marks =
                serde_json::from_value(serde_json::json!([text, "of another version"])).unwrap();
            assert!(told.contains(key), "{text}");
            assert_eq!(serde_json::to_value(told).unwrap(), serde_json::json!([text]));
        }
    }
}
