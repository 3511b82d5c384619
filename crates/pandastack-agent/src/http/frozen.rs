//! Frozen states and verdicts on them.

use pandastack_types::agent_api::HostFrozen;
use pandastack_types::agent_api::endpoints::{ReadFrozen, SetVerdicts};

use super::endpoint::HostCall;
use crate::error::Result;
use crate::frozen;

pub(super) async fn read(call: HostCall<ReadFrozen>) -> Result<HostFrozen> {
    frozen::list(&call.host).await
}

pub(super) async fn set_verdicts(call: HostCall<SetVerdicts>) -> Result<()> {
    frozen::set_verdicts(&call.host, call.body).await
}
