//! Deleting a sandbox.
//!
//! The intention is recorded first and cannot be undone, so the call succeeds even when the host
//! does not respond: the row stays `stopping` and [`crate::report`] finishes the work when the host
//! reports again.

use std::sync::Arc;

use pandastack_agent_client::AgentError;
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::{Change, SandboxRecord, StoreError};
use pandastack_types::{Result, Transition, chain};

use super::{MOVE_WAIT, describe, remove_machine};
use crate::Sandboxes;
use crate::in_flight::OperationKey;

/// Deletes a sandbox, now or once its host responds. Runs to its end even if the caller is dropped.
pub async fn delete(sandboxes: &Arc<Sandboxes>, record: SandboxRecord, why: Option<&str>) -> Result<()> {
    let (own, why) = (Arc::clone(sandboxes), why.map(str::to_owned));
    sandboxes
        .owned(async move {
            let change = Change { detail: why, ..Change::at(now()) };
            let record = match own.transition(&record.id, Transition::Deleting, &change).await {
                // Two deletes at once: the other one was faster.
                Err(StoreError::NotFound { .. }) => return Ok(()),
                moved => moved?,
            };
            carry_out(&own, &record).await
        })
        .await
}

/// The rest of a delete whose intention was just recorded.
pub(super) async fn carry_out(sandboxes: &Sandboxes, record: &SandboxRecord) -> Result<()> {
    fault::point("control.delete.intended").await;
    let (finished, synced) = tokio::join!(finish(sandboxes, record), sandboxes.store.sync());
    synced?;
    finished
}

/// Removes the machine and then the row of a sandbox that is `stopping`, unless that is being done.
pub async fn finish_unless_begun(sandboxes: &Sandboxes, record: &SandboxRecord) -> Result<()> {
    match sandboxes.background.mark(&OperationKey::Delete(record.id.clone())) {
        Some(_marked) => finish_marked(sandboxes, record).await,
        None => Ok(()),
    }
}

/// The same for a caller, whose answer means that it is done: a report may have begun it.
async fn finish(sandboxes: &Sandboxes, record: &SandboxRecord) -> Result<()> {
    match sandboxes.background.mark_within(&OperationKey::Delete(record.id.clone()), MOVE_WAIT).await {
        Some(_marked) => finish_marked(sandboxes, record).await,
        None => Ok(()),
    }
}

/// Safe to repeat.
async fn finish_marked(sandboxes: &Sandboxes, record: &SandboxRecord) -> Result<()> {
    let removed = match sandboxes.hosts.client(&record.host) {
        Ok(client) => {
            // Query the host first, because it does not report the totals of a removed machine, and
            // short lifetimes count too.
            let last = describe(&client, record).await.ok();
            remove_machine(&client, record).await.map(|()| last)
        }
        Err(error) => Err(error),
    };
    fault::point("control.delete.removed").await;
    let mut change = Change::at(now());
    match removed {
        Ok(seen) => change.seen = seen.map(Box::new),
        Err(error @ AgentError::Answered { .. }) => return Err(error.into()),
        Err(error) => {
            tracing::info!(
                sandbox = %record.id, error = %chain(&error),
                "the deletion will be completed when the host reports"
            );
            return Ok(());
        }
    }
    super::snapshot::remove_checkpoints(sandboxes, record).await?;
    match sandboxes.transition(&record.id, Transition::Deleted, &change).await {
        Ok(_) | Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    crate::volumes::reconcile::on_sandbox_deleted(sandboxes, record).await;
    fault::point("control.delete.done").await;
    Ok(())
}
