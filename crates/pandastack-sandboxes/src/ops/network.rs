//! Changes a sandbox's network policy.

use std::sync::Arc;

use pandastack_store::{Amendment, SandboxRecord};
use pandastack_types::Result;
use pandastack_types::agent_api::endpoints::SetNetwork;
use pandastack_types::network::NetworkPolicy;

use super::{MOVE_WAIT, check_live, options_for};
use crate::Sandboxes;

/// Changes the policy at the sandbox's host, where it applies at once, then in the record. Changes
/// of one sandbox are serialized, so that host and record end with the same policy. Runs to its end
/// even if the caller is dropped. Never wakes a sleeping sandbox.
pub async fn set(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    policy: NetworkPolicy,
) -> Result<SandboxRecord> {
    check_live(&record)?;
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let turn = own.network_locks.of(record.id.clone());
            let _mine = turn.lock().await;
            // The operation before may have taken a while.
            let record = own.store.sandbox(None, &record.id).await?;
            check_live(&record)?;
            let client = own.hosts.client(&record.host)?;
            let call = SetNetwork::new(record.id.clone());
            client.call(call, options_for(&record, MOVE_WAIT), &policy).await?;
            Ok(own.amend(&record.id, &Amendment::Network(Box::new(policy))).await?)
        })
        .await
}
