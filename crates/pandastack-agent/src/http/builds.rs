//! Template bakes.

use pandastack_types::agent_api::endpoints::{BakeTemplate, ListBuilds, ReadBuild};
use pandastack_types::api::Build;

use super::endpoint::HostCall;
use crate::error::Result;

pub(super) async fn bake(call: HostCall<BakeTemplate>) -> Result<Build> {
    call.host.templates.begin(&call.endpoint.template)
}

pub(super) async fn list(call: HostCall<ListBuilds>) -> Result<Vec<Build>> {
    Ok(call.host.templates.builds.list())
}

pub(super) async fn read(call: HostCall<ReadBuild>) -> Result<Build> {
    call.host.templates.builds.get(&call.endpoint.build)
}
