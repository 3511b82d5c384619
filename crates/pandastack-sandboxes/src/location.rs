//! A cache of sandbox locations, so that the data path queries the store once per sandbox, not once per
//! call.
//!
//! Every change that this process commits makes it forget the sandbox
//! ([`Sandboxes::publish`](super::Sandboxes::publish)), and so does one of another replica, as soon
//! as the store tells of it. Until then the agent, which has the last word, refuses the stale
//! incarnation or does not know the sandbox.
//!
//! Written by hand, and not with a cache crate, because what was read before a change must not be
//! remembered after it: the counter of changes and the map are under one lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pandastack_types::{HostId, SandboxId, WorkspaceId};

/// Time for which a location is cached.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Locations remembered at once; beyond it all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 10_000;

/// The location of a live sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Workspace of the sandbox.
    pub workspace: WorkspaceId,
    /// The host that has it.
    pub host: HostId,
    /// Incarnation of the sandbox.
    pub incarnation: u64,
    /// Whether the sandbox slept at the lookup: the next use wakes it, and a client that reads its
    /// state afterwards must see that.
    pub asleep: bool,
}

/// The locations of live sandboxes that were used recently.
#[derive(Default)]
pub struct LocationCache(Mutex<CachedLocation>);

#[derive(Default)]
struct CachedLocation {
    locations: HashMap<SandboxId, (Location, Instant)>,
    /// Number of dropped entries, so that an outdated read is not cached.
    forgotten: u64,
}

/// Taken before the store is read; see [`LocationCache::remember`].
#[derive(Debug, Clone, Copy)]
pub struct Reading(u64);

impl LocationCache {
    fn lock(&self) -> MutexGuard<'_, CachedLocation> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached location of a sandbox, or a token with which to cache it.
    pub fn find(&self, workspace: &WorkspaceId, id: &SandboxId) -> Result<Location, Reading> {
        let known = self.lock();
        let location = known
            .locations
            .get(id)
            .filter(|(location, since)| location.workspace == *workspace && since.elapsed() < REMEMBERED);
        location.map(|(location, _)| location.clone()).ok_or(Reading(known.forgotten))
    }

    /// Caches a location that was read after [`LocationCache::find`], unless entries were dropped
    /// in between.
    pub fn remember(&self, reading: Reading, id: &SandboxId, location: &Location) {
        let mut known = self.lock();
        if known.forgotten != reading.0 {
            return;
        }
        if known.locations.len() >= REMEMBERED_MAX {
            known.locations.clear();
        }
        known.locations.insert(id.clone(), (location.clone(), Instant::now()));
    }

    /// Drops all entries: the change is unknown.
    pub fn forget_all(&self) {
        let mut known = self.lock();
        known.forgotten += 1;
        known.locations.clear();
    }

    /// Forgets a sandbox that changed.
    pub fn forget(&self, id: &SandboxId) {
        let mut known = self.lock();
        known.forgotten += 1;
        known.locations.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location() -> Location {
        let host = "host-1".parse().unwrap();
        Location { workspace: WorkspaceId::default_workspace(), host, incarnation: 1, asleep: false }
    }

    #[test]
    fn a_cached_location_is_scoped_to_its_workspace() {
        let (locations, id) = (LocationCache::default(), SandboxId::random());
        let reading = locations.find(&location().workspace, &id).unwrap_err();
        locations.remember(reading, &id, &location());
        assert_eq!(locations.find(&location().workspace, &id).unwrap(), location());
        assert!(locations.find(&"another".parse().unwrap(), &id).is_err());
        locations.forget(&id);
        assert!(locations.find(&location().workspace, &id).is_err());
    }

    #[test]
    fn locations_read_before_a_change_are_not_cached() {
        let (locations, id) = (LocationCache::default(), SandboxId::random());
        let reading = locations.find(&location().workspace, &id).unwrap_err();
        locations.forget(&id);
        locations.remember(reading, &id, &location());
        assert!(locations.find(&location().workspace, &id).is_err());
    }
}
