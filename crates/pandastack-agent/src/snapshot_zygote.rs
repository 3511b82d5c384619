//! Zygotes of snapshots: a snapshot that is used again and again is kept as a stopped machine and forked.
//!
//! ```text
//!   create 1: restores    create 2: restores, and a zygote is made behind it    create 3 and later: fork it
//! ```
//!
//! They differ from the zygotes of templates ([`crate::zygote`]) because a snapshot holds a tenant's kernel and programs:
//! - The zygote is locked in as any sandbox of its lineage, under the lineage's user; it keeps no privilege, and
//!   reaches no network.
//! - User processes stay frozen in it, so that every child begins at the snapshot's instant. What warms is the guest's
//!   kernel and its PandaStack program, which is what a create waits for.
//!
//! What must hold: a zygote never outlives its snapshot, and is used only while the snapshot's files pass their checks. It is
//! a convenience: a host that runs short of memory ends it before it refuses anyone, and one that nobody uses for ten minutes ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pandastack_engine::Confinement;
use pandastack_net::NetworkPolicy;
use pandastack_types::SnapshotId;

use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::snapshot::Snapshot;
use crate::zygote::{Lease, Started, Zygote};

/// Creates from one snapshot after which it gets a zygote.
const USES_BEFORE: u32 = 2;
/// How long a zygote is kept for its next use: what nobody calls must cost no process.
const UNUSED_MAX: Duration = Duration::from_secs(600);
/// Snapshots whose uses are counted; those not used for longest are forgotten, and counted anew.
const COUNTED_MAX: usize = 256;
/// Begins the directory names of these zygotes. No template's name has an `@`.
const PREFIX: &str = "snapshot@";

/// Whether a zygote's name is that of a snapshot's.
pub(crate) fn is_of_snapshot(name: &str) -> bool {
    name.starts_with(PREFIX)
}

fn zygote_name(id: &SnapshotId) -> String {
    format!("{PREFIX}{id}")
}

/// How often snapshots were used, the latest last.
#[derive(Default)]
pub(crate) struct SnapshotUses {
    counted: Mutex<VecDeque<(SnapshotId, u32)>>,
}

impl SnapshotUses {
    /// Counts a use and returns how many there were.
    fn count(&self, id: &SnapshotId) -> u32 {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let at = counted.iter().position(|(known, _)| known == id);
        let before = at.and_then(|at| counted.remove(at)).map_or(0, |(_, uses)| uses);
        if counted.len() == COUNTED_MAX {
            counted.pop_front();
        }
        let uses = before.saturating_add(1);
        counted.push_back((id.clone(), uses));
        uses
    }
}

/// The zygote of a snapshot, if there is one now.
pub(crate) fn get(host: &Host, id: &SnapshotId) -> Option<Lease> {
    host.zygotes.lease(&zygote_name(id), id.as_str())
}

/// Notes that a sandbox was restored from a snapshot, and makes a zygote of it if that happens often and memory is there.
pub(crate) fn note_restore(host: &Arc<Host>, id: &SnapshotId, snapshot: &Snapshot) {
    let uses = host.zygotes.snapshot_uses.count(id);
    if uses < USES_BEFORE || host.admit(snapshot.manifest.shape, 1).is_err() {
        return;
    }
    let making = {
        let (host, id, snapshot) = (host.clone(), id.clone(), snapshot.clone());
        async move { make(&host, &id, &snapshot).await }
    };
    host.zygotes.begin(host, &zygote_name(id), id.as_str(), making);
}

/// Ends the zygote of a snapshot that is being deleted.
pub(crate) async fn forget(host: &Host, id: &SnapshotId) {
    host.zygotes.remove(host, &zygote_name(id)).await;
}

/// Ends a zygote whose snapshot was deleted while it was being made, or while no agent ran.
pub(crate) async fn end_orphan(host: &Host, name: &str) {
    let id = name.strip_prefix(PREFIX).and_then(|id| id.parse::<SnapshotId>().ok());
    if id.is_some_and(|id| !host.layout.snapshot(&id).exists()) {
        host.zygotes.remove(host, name).await;
    }
}

/// Ends those that nobody uses any more, until shutdown.
pub(crate) async fn run(host: Arc<Host>) {
    loop {
        let next = host.zygotes.end_unused(&host, UNUSED_MAX).await;
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = host.shutdown.cancelled() => return,
        }
    }
}

/// Ends all of them: memory is needed for machines that run.
pub(crate) async fn end_all(host: &Host) {
    host.zygotes.evict(host, true, 0).await;
}

async fn make(host: &Arc<Host>, id: &SnapshotId, snapshot: &Snapshot) -> Result<Zygote> {
    let no_lineage = || AgentError::Launch("the snapshot names no user".to_owned());
    let uid = snapshot.manifest.uid.ok_or_else(no_lineage)?;
    snapshot.verify(&host.shutdown).await?;
    let (name, confinement) = (zygote_name(id), Confinement::Full { uid, gid: uid });
    let started = Started::restore(host, &name, snapshot, confinement, &NetworkPolicy::none()).await?;
    // The answer alone: an identity would let user processes go on.
    let warmed = started.run().await;
    started.stop(host, &name, id.as_str(), warmed).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_and_forgotten() {
        let (uses, first) = (SnapshotUses::default(), SnapshotId::random());
        assert_eq!([uses.count(&first), uses.count(&first)], [1, 2]);
        (1..COUNTED_MAX).for_each(|_| assert_eq!(uses.count(&SnapshotId::random()), 1));
        assert_eq!(uses.count(&first), 3, "used lately");
        (0..COUNTED_MAX).for_each(|_| assert_eq!(uses.count(&SnapshotId::random()), 1));
        assert_eq!(uses.count(&first), 1, "forgotten");
    }

    #[test]
    fn names_tell_what_a_zygote_is_of() {
        assert!(is_of_snapshot(&zygote_name(&SnapshotId::random())));
        assert!(!is_of_snapshot("base") && !is_of_snapshot("snapshot-tools"));
    }
}
