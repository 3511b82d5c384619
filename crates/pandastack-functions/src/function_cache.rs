//! A cache of recently called functions, so that not every call queries the store.
//!
//! Invariant: a client whose change of a function was acknowledged calls the changed function. The
//! store counts the changes that this server commits, and what was read before the last of them is
//! read again. Functions are served by one server at a time, so that the changes of others are not
//! missed; for those of a server that led before, nothing is remembered for long.
//!
//! Written by hand, and not with a cache crate (`moka`): an entry ends when the store's counter moves, which
//! only a reader sees, so expiry by time alone does not fit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pandastack_store::functions::{FunctionRecord, FunctionStore};
use pandastack_types::{Error, FunctionId, Result, WorkspaceId};

/// Time for which a function is cached.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Functions remembered at once; beyond it all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 1000;

/// A workspace and a caller's name for the function, or only an id.
type Key = (Option<WorkspaceId>, String);

/// A function as it was read, and when.
struct CachedFunction {
    record: FunctionRecord,
    changes: u64,
    at: Instant,
}

/// Functions by the callers' names for them.
#[derive(Default)]
pub(crate) struct FunctionCache(Mutex<HashMap<Key, CachedFunction>>);

impl FunctionCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, CachedFunction>> {
        // Every critical section leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: &Key, changes: u64) -> Option<FunctionRecord> {
        let known = self.lock();
        let read = known.get(key).filter(|read| read.changes == changes && read.at.elapsed() < REMEMBERED);
        read.map(|read| read.record.clone())
    }

    fn remember(&self, key: Key, changes: u64, record: &FunctionRecord) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(key, CachedFunction { record: record.clone(), changes, at: Instant::now() });
    }

    /// The function of that id or name in a workspace, to be called.
    pub(crate) async fn to_call(
        &self,
        store: &dyn FunctionStore,
        workspace: &WorkspaceId,
        text: &str,
    ) -> Result<FunctionRecord> {
        let key = (Some(workspace.clone()), text.to_owned());
        let changes = store.function_changes();
        if let Some(record) = self.find(&key, changes) {
            return Ok(record);
        }
        let record = store.function_named(workspace, text).await?;
        let record = record.ok_or_else(|| Error::not_found("function", text))?;
        self.remember(key, changes, &record);
        Ok(record)
    }

    /// The function of that id in any workspace, to be called.
    pub(crate) async fn to_call_by_id(
        &self,
        store: &dyn FunctionStore,
        id: &FunctionId,
    ) -> Result<FunctionRecord> {
        let key = (None, id.to_string());
        let changes = store.function_changes();
        if let Some(record) = self.find(&key, changes) {
            return Ok(record);
        }
        let record = store.function(None, id).await?;
        self.remember(key, changes, &record);
        Ok(record)
    }
}
