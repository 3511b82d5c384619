//! Routes of sandboxes for the edge, read from the store.
//! [`pandastack_sandboxes::Sandboxes::send_event`] notifies edges when a route may have changed.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_edge::{AppRoute, Location, Route, RouteSource, RouteUnavailable};
use pandastack_sandboxes::hosts::Hosts;
use pandastack_sandboxes::why_closed;
use pandastack_store::{Store, StoreError};
use pandastack_types::domains::Domains;
use pandastack_types::link::LinkKey;
use pandastack_types::preview::PreviewKey;
use pandastack_types::{SandboxId, SandboxState};

/// Routes from the store.
pub(crate) struct StoredRoutes {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) link: LinkKey,
    pub(crate) domains: Domains,
}

/// Message for visitors of a sandbox in a suspended workspace. The reason is omitted: that is
/// between the operator and the workspace.
pub(crate) fn suspended(sandbox: &SandboxId) -> String {
    format!("sandbox `{sandbox}` is suspended by the operator of this installation")
}

#[async_trait]
impl RouteSource for StoredRoutes {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let record = match self.store.sandbox(None, sandbox).await {
            Ok(record) => record,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(RouteUnavailable(error.to_string())),
        };
        if matches!(record.state, SandboxState::Stopping | SandboxState::Deleted) {
            return Ok(None);
        }
        let unavailable = |error: StoreError| RouteUnavailable(error.to_string());
        let closed = why_closed(self.store.as_ref(), &record.workspace).await.map_err(unavailable)?;
        if closed.is_some() {
            let (to, visibility) = (Location::Closed(suspended(sandbox)), record.spec.visibility);
            return Ok(Some(Route { to, visibility, host_header: None, key: None }));
        }
        let agent = self.hosts.client(&record.host).map_err(|error| RouteUnavailable(error.to_string()))?;
        let key = PreviewKey::new(&self.link, sandbox, record.spec.preview_revision);
        Ok(Some(Route {
            to: Location::Sandbox { agent, incarnation: record.incarnation },
            visibility: record.spec.visibility,
            host_header: record.spec.host_header,
            key: Some(key),
        }))
    }

    async fn find_name(&self, name: &str) -> Result<Option<AppRoute>, RouteUnavailable> {
        pandastack_apps::names::find(self.store.as_ref(), self.store.as_ref(), &self.domains, name).await
    }
}
