//! The edges that may forward traffic to sandboxes of this host.

use pandastack_types::agent_api::endpoints::SetEdges;

use super::endpoint::HostCall;
use crate::error::Result;

pub(super) async fn set(call: HostCall<SetEdges>) -> Result<()> {
    call.host.link.set_edges(call.body);
    Ok(())
}
