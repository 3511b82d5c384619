//! Creating, growing and deleting volumes.

use pandastack_types::agent_api::AgentVolume;
use pandastack_types::agent_api::endpoints::{CreateVolume, DeleteVolume, GrowVolume};

use super::endpoint::HostCall;
use crate::error::Result;
use crate::volume;

/// A volume that a sandbox writes is copied by that sandbox's driver.
pub(super) async fn create(HostCall { host, body, .. }: HostCall<CreateVolume>) -> Result<AgentVolume> {
    if let (Some(from), Some(writer)) = (&body.from, &body.writer)
        && let Ok(handle) = host.sandbox(writer)
    {
        handle.copy_volume(from.clone(), body.id.clone()).await?;
        return volume::settle(&host, body.id).await;
    }
    volume::create(&host, body).await
}

/// A volume grows in the guest of the sandbox that has it, too.
pub(super) async fn grow(HostCall { host, endpoint, body }: HostCall<GrowVolume>) -> Result<AgentVolume> {
    let id = endpoint.volume;
    if let Some(handle) = body.writer.as_ref().and_then(|writer| host.sandbox(writer).ok()) {
        handle.grow_volume(id.clone(), body.size_bytes).await?;
        return volume::settle(&host, id).await;
    }
    volume::grow(&host, id, body.size_bytes).await
}

pub(super) async fn delete(call: HostCall<DeleteVolume>) -> Result<()> {
    volume::remove(&call.host, call.endpoint.volume).await
}
