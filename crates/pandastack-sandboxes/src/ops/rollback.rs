//! Rolls a sandbox back to one of its own snapshots.
//!
//! The row keeps its id, labels and lifetime; only its state and its host's view change. Reports
//! are ignored during the rollback: on its host the sandbox falls asleep and wakes again, which
//! users must not see.

use std::sync::Arc;

use pandastack_agent_client::AgentClient;
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::{Amendment, Change, SandboxRecord, SnapshotRecord};
use pandastack_types::agent_api::AgentRollback;
use pandastack_types::agent_api::endpoints::RollBack;
use pandastack_types::{Error, Result, SnapshotId, WorkspaceId};

use super::lifecycle::settle;
use super::{MAKE_WAIT, options_for};
use crate::Sandboxes;
use crate::in_flight::OperationKey;

/// Rolls a sandbox back, by default to its newest snapshot. Runs to its end even if the caller is
/// dropped.
pub async fn rollback(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    client: AgentClient,
    snapshot: Option<SnapshotId>,
) -> Result<SandboxRecord> {
    let snapshot = choose(sandboxes, &record.workspace, &record, snapshot).await?;
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let Some(_marked) = own.background.mark(&OperationKey::Sandbox(record.id.clone())) else {
                let message =
                    format!("another operation on sandbox `{}` is in progress; try again", record.id);
                return Err(Error::conflict(message));
            };
            let body = AgentRollback { snapshot_id: snapshot.id.clone() };
            let call = RollBack::new(record.id.clone());
            let seen = client.call(call, options_for(&record, MAKE_WAIT), &body).await?;
            fault::point("control.rollback.answered").await;
            settle(&own, &record, seen, Change::at(now())).await?;
            Ok(own.amend(&record.id, &Amendment::RolledBack(snapshot.id)).await?)
        })
        .await
}

async fn choose(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    record: &SandboxRecord,
    given: Option<SnapshotId>,
) -> Result<SnapshotRecord> {
    let Some(id) = given else {
        let newest = sandboxes.store.snapshots(workspace, Some(&record.id)).await?.into_iter().next();
        let none = || Error::conflict(format!("sandbox `{}` has no snapshot; create one first", record.id));
        return newest.ok_or_else(none);
    };
    let snapshot = super::snapshot::find(sandboxes, workspace, &id).await?;
    if snapshot.sandbox != record.id {
        return Err(Error::bad_request(format!(
            "snapshot `{id}` is of sandbox `{}`, not `{}`; create a sandbox from it instead",
            snapshot.sandbox, record.id
        )));
    }
    Ok(snapshot)
}
