//! Changing what a sandbox may reach.

use std::sync::Arc;

use http::Method;
use pandastack_store::{Amendment, SandboxRecord};
use pandastack_types::Result;
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::network::NetworkPolicy;

use super::{MOVE_WAIT, call_on, check_live};
use crate::Sandboxes;

/// Changes the policy at the sandbox's host, where it holds at once, then in the record. Changes of one sandbox come one
/// after the other, so that both have the same last one. Runs to its end even if the caller is dropped. Never wakes a sleeper.
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
            // Whoever had the turn before may have taken a while.
            let record = own.store.sandbox(None, &record.id).await?;
            check_live(&record)?;
            let client = own.hosts.client(&record.host)?;
            let path = format!("/sandboxes/{}/network", record.id);
            let call = call_on(&record, Method::PUT, &path, MOVE_WAIT);
            client.call::<AgentSandbox>(call, Some(&policy)).await?;
            Ok(own.amend(&record.id, &Amendment::Network(Box::new(policy))).await?)
        })
        .await
}
