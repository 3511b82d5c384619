//! Automatic checkpoints: periodic snapshots of active sandboxes.
//!
//! Hosts report every few seconds how long each sandbox has been idle. Each report is checked once,
//! and due checkpoints are taken in the background. This state is not persisted: after a restart
//! the newest checkpoint of a sandbox shows when it was last saved. A failed checkpoint is retried
//! after another period, so that a full disk is not hammered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pandastack_store::SandboxRecord;
use pandastack_store::clock::now;
use pandastack_types::agent_api::{AgentSandbox, HostReport};
use pandastack_types::api::{Checkpoints, CreateSnapshot, SnapshotKind};
use pandastack_types::{HostId, Owner, Result, SandboxId, SandboxState, chain};

use crate::Sandboxes;
use crate::ops;

/// When each sandbox with checkpoints was last saved, or tried to be, by host.
#[derive(Default)]
pub struct CheckpointClock(Mutex<HashMap<HostId, HashMap<SandboxId, Timestamp>>>);

impl CheckpointClock {
    /// Removes and returns the times of a host's sandboxes; the caller puts back the times to keep.
    fn take(&self, host: &HostId) -> HashMap<SandboxId, Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(host).unwrap_or_default()
    }

    fn put(&self, host: &HostId, known: HashMap<SandboxId, Timestamp>) {
        if !known.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host.clone(), known);
        }
    }
}

/// Takes the checkpoints that are due by this report.
pub async fn take_due(sandboxes: &Arc<Sandboxes>, rows: &[SandboxRecord], report: &HostReport) -> Result<()> {
    let before = sandboxes.checkpoints.take(&report.host);
    let mut known = HashMap::new();
    for row in rows {
        let Some(wanted) = row.spec.checkpoints else { continue };
        // A snapshot of a machine with the data of a database would be a way into it.
        if row.owner.as_ref().and_then(Owner::sealed_for).is_some() {
            continue;
        }
        let Some(seen) = report.sandboxes.iter().find(|seen| seen.id == row.id) else { continue };
        let last = match before.get(&row.id) {
            Some(last) => *last,
            None => last_on_record(sandboxes, row).await?,
        };
        let due = is_due(wanted, last, seen, now());
        known.insert(row.id.clone(), if due { now() } else { last });
        if due {
            begin(sandboxes, row.clone(), wanted);
        }
    }
    sandboxes.checkpoints.put(&report.host, known);
    Ok(())
}

/// Due is a running sandbox whose last checkpoint is old enough and in which something happened since.
fn is_due(wanted: Checkpoints, last: Timestamp, seen: &AgentSandbox, now: Timestamp) -> bool {
    let since = Duration::try_from(now.duration_since(last)).unwrap_or(Duration::ZERO);
    seen.state == SandboxState::Running
        && since >= Duration::from_secs(wanted.every_seconds)
        && Duration::from_secs(seen.idle_seconds) < since
}

async fn last_on_record(sandboxes: &Sandboxes, row: &SandboxRecord) -> Result<Timestamp> {
    let snapshots = sandboxes.store.snapshots(&row.workspace, Some(&row.id)).await?;
    let newest = snapshots.into_iter().find(|snapshot| snapshot.spec.kind == SnapshotKind::Checkpoint);
    Ok(newest.map_or(row.created_at, |snapshot| snapshot.created_at))
}

fn begin(sandboxes: &Arc<Sandboxes>, row: SandboxRecord, wanted: Checkpoints) {
    let own = Arc::clone(sandboxes);
    sandboxes.background.tasks.spawn(async move {
        let Ok(client) = own.hosts.client(&row.host) else { return };
        let request = CreateSnapshot { keep_last: Some(wanted.keep_last), ..CreateSnapshot::default() };
        let id = row.id.clone();
        let taken = ops::snapshot::take(&own, row, client, request, SnapshotKind::Checkpoint).await;
        if let Err(error) = taken {
            tracing::warn!(
                sandbox = %id, error = %chain(&error),
                "cannot take a checkpoint; retrying after the next interval"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(state: SandboxState, idle_seconds: u64, since_seconds: i64, due: bool) {
        let seen = serde_json::from_value(serde_json::json!({
            "id": "s", "incarnation": 1, "state": state, "template": "base", "cpu": 1, "memory_mb": 1,
            "engine": "e", "isolation": "i", "boot_mode": "fork", "boot_ms": 1, "idle_seconds": idle_seconds,
        }));
        let seen: AgentSandbox = seen.unwrap_or_else(|error| panic!("{error}"));
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
        let last = now - jiff::SignedDuration::from_secs(since_seconds);
        let wanted = Checkpoints { every_seconds: 60, keep_last: 1 };
        assert_eq!(is_due(wanted, last, &seen, now), due, "{state:?} {idle_seconds} {since_seconds}");
    }

    #[test]
    fn a_checkpoint_is_due_only_after_activity() {
        check(SandboxState::Running, 0, 59, false);
        check(SandboxState::Running, 0, 60, true);
        check(SandboxState::Running, 59, 60, true);
        check(SandboxState::Running, 60, 60, false);
        check(SandboxState::Paused, 0, 60, false);
        check(SandboxState::Hibernated, 0, 600, false);
    }
}
