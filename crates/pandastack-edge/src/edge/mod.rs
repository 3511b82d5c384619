//! The edge: state shared by all requests.

mod logged_request;
mod serve;
mod serve_app;
mod streams;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use pandastack_metrics::Page;
use pandastack_types::SandboxId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::app_route::AppRoute;
use crate::error::EdgeError;
use crate::limits::STOP_WAIT;
use crate::names::Names;
use crate::route::RouteSource;
use crate::sites::Sites;
use crate::stall;

/// An edge. Shared by all connections of all listeners.
pub struct Edge {
    source: Arc<dyn RouteSource>,
    sites: Sites,
    names: Names,
    log: Arc<AccessLog>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Counts choices between machines of apps.
    turn: AtomicUsize,
}

impl Edge {
    /// An edge with its routes from `source`.
    pub fn new(source: Arc<dyn RouteSource>, log: AccessLog) -> Arc<Self> {
        let edge = Arc::new(Self {
            source,
            sites: Sites::default(),
            names: Names::default(),
            log: Arc::new(log),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            turn: AtomicUsize::new(0),
        });
        let (log, stop) = (Arc::clone(&edge.log), edge.stop.clone());
        edge.tasks.spawn(async move { log.keep_flushed(stop).await });
        edge.tasks.spawn(stall::keep(edge.stop.clone()));
        edge
    }

    /// Adds counters to a page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        self.log.add_metrics(page);
    }

    /// The route of one sandbox, or of all, may have changed: it is read again before its next use.
    pub fn forget_route(&self, sandbox: Option<&SandboxId>) {
        self.sites.invalidate(sandbox);
    }

    /// Invalidates all cached names: each is looked up again before its next use.
    pub fn forget_names(&self) {
        self.names.invalidate();
    }

    /// The current route of a host name; `None` if it belongs to no app.
    pub async fn app_route(&self, name: &str) -> Result<Option<AppRoute>, EdgeError> {
        let found = self.names.find(name, self.source.as_ref()).await;
        found.map_err(|error| EdgeError::Unavailable(error.to_string()))
    }

    /// Ends grants, tunnels and the log. Requests in flight were waited for by the server.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_WAIT, self.tasks.wait()).await.is_err() {
            tracing::info!("stopped with tunnels open");
        }
        self.log.flush();
    }
}

#[cfg(test)]
mod tests;
