//! Rollback: a sandbox returns to one of its own snapshots and stays the same sandbox.
//!
//! A rollback is a sleep on the snapshot followed by a wake, so the same order of writes protects it:
//! 1. The snapshot's files are linked into the sleep directory.
//! 2. The record says that the sandbox sleeps there.
//! 3. The old machine ends.
//! 4. The new machine starts.
//!
//! A crash before step 2 leaves the sandbox as it was. A later crash leaves it asleep in the state of the
//! snapshot.

use pandastack_fault as fault;
use pandastack_types::SnapshotId;
use pandastack_types::agent_api::AgentSandbox;

use super::accept::{Request, Verdict};
use super::driver::Driver;
use crate::error::{AgentError, Result};
use crate::outdated;
use crate::snapshot::Snapshot;

impl Driver {
    /// Returns to a snapshot; the sandbox runs afterwards, even if it slept before.
    pub(super) async fn rollback(&mut self, id: &SnapshotId) -> Result<AgentSandbox> {
        if let Verdict::Refuse(reason) = self.accept(Request::Rollback) {
            return Err(self.refusal(reason));
        }
        if self.writes_volumes() {
            let reason = "the sandbox has a volume, and a rollback would take back what was written to it since; create a \
                          sandbox from the snapshot instead, which gets a copy of the volume as it was then";
            return Err(self.refusal(reason));
        }
        self.alone().await;
        let snapshot = self.open_own(id)?;
        outdated::refuse_due(&self.host.layout.snapshot(id))?;
        // Before anything is discarded: verifies the contents if they were not verified since the
        // host booted.
        snapshot.verify(&self.host.shutdown).await?;
        if self.live.is_none() {
            self.host.free_memory(self.record.shape, 1, Some(&self.record.spec.id)).await?;
        }
        self.grants.close().await;
        snapshot.link_to(&self.host, self.host.layout.sleep(&self.record.spec.id), Vec::new()).await?;
        fault::point("rollback.published").await;
        self.record_sleep().await?;
        self.rollbacks += 1;
        fault::point("rollback.recorded").await;
        self.end_machine().await;
        fault::point("rollback.ended").await;
        // The snapshot has a verdict of its own.
        self.wake_as_it_is().await?;
        Ok(self.describe())
    }

    fn open_own(&self, id: &SnapshotId) -> Result<Snapshot> {
        let dir = self.host.layout.snapshot(id);
        if !dir.exists() {
            return Err(AgentError::NoSnapshot(id.clone()));
        }
        let snapshot = Snapshot::open(&dir, self.host.engine.capabilities())?;
        if snapshot.manifest.sandbox.as_ref() != Some(&self.record.spec.id) {
            return Err(AgentError::Conflict(format!(
                "snapshot {id} belongs to another sandbox; create a sandbox from it instead"
            )));
        }
        Ok(snapshot)
    }
}
