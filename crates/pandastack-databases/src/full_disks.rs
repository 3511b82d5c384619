//! Databases that are read-only because their disk is full.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_sandboxes::keyed_mutex::KeyedMutex;
use pandastack_types::DatabaseId;
use tokio::time::Instant;

use crate::backups::archives::LogPosition;

/// Time for which a full database is assumed to be full without another check.
const KNOWN_FOR: Duration = Duration::from_secs(2);

/// The databases that were last found full.
#[derive(Default)]
pub(crate) struct FullDisks {
    found: Mutex<HashMap<DatabaseId, DiskCheck>>,
    /// Locks for checks after an error: concurrent callers share the first one's result.
    pub(crate) locks: KeyedMutex<DatabaseId>,
}

/// The answer of a server.
#[derive(Clone, Copy)]
pub(crate) struct DiskCheck {
    pub(crate) full: bool,
    /// Time of the query: the state may have changed by the time of the response.
    pub(crate) asked: Instant,
    /// Position of its log at the check.
    pub(crate) written: Option<LogPosition>,
}

impl FullDisks {
    fn lock(&self) -> MutexGuard<'_, HashMap<DatabaseId, DiskCheck>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the last check found a database read-only for lack of disk space.
    pub(crate) fn is_full(&self, id: &DatabaseId) -> bool {
        self.lock().get(id).is_some_and(|found| found.full)
    }

    /// The state for an error of this instant, if a recent check determined it. An earlier check that found
    /// space proves nothing: the error may be the first of a database that has just become full.
    pub(crate) fn recent_check(&self, id: &DatabaseId, came: Instant) -> Option<bool> {
        let found = *self.lock().get(id)?;
        let holds = found.asked >= came || (found.full && found.asked.elapsed() < KNOWN_FOR);
        holds.then_some(found.full)
    }

    /// Returns whether nothing was written since the last check.
    pub(crate) fn is_settled(&self, id: &DatabaseId, written: Option<LogPosition>) -> bool {
        self.lock().get(id).is_some_and(|found| found.written == written)
    }

    /// Forgets databases that are not wanted.
    pub(crate) fn retain(&self, is_wanted: impl Fn(&DatabaseId) -> bool) {
        self.lock().retain(|id, _| is_wanted(id));
    }

    /// Discards an outdated result.
    pub(crate) fn forget(&self, id: &DatabaseId) {
        self.lock().remove(id);
    }

    pub(crate) fn note(&self, id: &DatabaseId, found: DiskCheck) {
        let before = self.lock().insert(id.clone(), found);
        match (before.is_some_and(|before| before.full), found.full) {
            (false, true) => tracing::warn!(database = %id, "a database is read-only: its disk is full"),
            (true, false) => tracing::info!(database = %id, "a database has disk space again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_checks_older_than_an_error_do_not_prove_free_space() {
        let (disks, id) = (FullDisks::default(), "a1".parse().unwrap());
        let asked = Instant::now();
        let (before, after) = (asked - Duration::from_millis(1), asked + Duration::from_millis(1));
        disks.note(&id, DiskCheck { full: false, asked, written: None });
        assert_eq!((disks.recent_check(&id, before), disks.recent_check(&id, after)), (Some(false), None));
        disks.note(&id, DiskCheck { full: true, asked, written: None });
        assert_eq!(
            (disks.recent_check(&id, before), disks.recent_check(&id, after)),
            (Some(true), Some(true))
        );
    }
}
