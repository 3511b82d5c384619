//! Zygotes of snapshots: a snapshot that is used repeatedly is kept as a stopped machine and forked.
//!
//! ```text
//!   create 1: restores    create 2: restores, and a zygote is made behind it    create 3 and later: fork it
//! ```
//!
//! They differ from the zygotes of templates ([`crate::zygote`]) because a snapshot holds a
//! tenant's kernel and programs:
//! - The zygote is confined like any sandbox of its lineage, under the lineage's user; it keeps no
//!   privilege, and reaches no network.
//! - User processes stay frozen in it, so that every child begins at the snapshot's instant. Only
//!   the guest's kernel and its PandaStack program warm up, and a create waits for these.
//!
//! Invariants: a zygote never outlives its snapshot, and is used only while the snapshot's files
//! pass their checks. It is optional: a host that runs short of memory ends it before it refuses a
//! request, and one unused for ten minutes ends.

use std::sync::Arc;
use std::time::Duration;

use pandastack_engine::Confinement;
use pandastack_net::NetworkPolicy;
use pandastack_types::SnapshotId;

use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::host_resources::HostResources;
use crate::snapshot::Snapshot;
use crate::zygote::{StartedZygote, Zygote, ZygoteLease};
use crate::zygotes::of_snapshot;

/// Creates from one snapshot after which it gets a zygote.
const USES_BEFORE: u32 = 2;
/// Time that a zygote is kept for its next use: an unused snapshot must cost no process.
const UNUSED_MAX: Duration = Duration::from_secs(600);
/// The zygote of a snapshot, if there is one now.
pub(crate) fn get(host: &Host, id: &SnapshotId) -> Option<ZygoteLease> {
    host.zygotes.lease(&of_snapshot(id), id.as_str())
}

/// Records that a sandbox was restored from a snapshot, and makes a zygote of it if that happens often and
/// memory is available.
pub(crate) fn note_restore(host: &Arc<Host>, id: &SnapshotId, snapshot: &Snapshot) {
    let uses = host.zygotes.snapshot_uses.count(id);
    if uses < USES_BEFORE || host.admit(snapshot.manifest.shape, 1).is_err() {
        return;
    }
    let making = {
        let (host, id, snapshot) = (host.resources.clone(), id.clone(), snapshot.clone());
        async move { make(&host, &id, &snapshot).await }
    };
    host.zygotes.begin(&of_snapshot(id), id.as_str(), making);
}

/// Ends unused zygotes of snapshots until shutdown.
pub(crate) async fn run(host: Arc<Host>) {
    loop {
        let next = host.zygotes.end_unused(UNUSED_MAX).await;
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = host.shutdown.cancelled() => return,
        }
    }
}

async fn make(host: &HostResources, id: &SnapshotId, snapshot: &Snapshot) -> Result<Zygote> {
    let no_lineage = || AgentError::Launch("the snapshot has no user".to_owned());
    let uid = snapshot.manifest.uid.ok_or_else(no_lineage)?;
    snapshot.verify(&host.shutdown).await?;
    let (name, confinement) = (of_snapshot(id), Confinement::Full { uid, gid: uid });
    let started = StartedZygote::restore(host, &name, snapshot, confinement, &NetworkPolicy::none()).await?;
    // The answer alone: an identity would let user processes continue.
    let warmed = started.run().await;
    started.stop(host, &name, id.as_str(), warmed).await
}
