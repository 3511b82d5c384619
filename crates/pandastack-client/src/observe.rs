//! Metrics, usage, the audit log and events.

use pandastack_types::SandboxId;
use pandastack_types::api::{AuditEntry, AuditList, AuditVerification, Event, SandboxMetrics, UsageReport};
use reqwest::Method;

use crate::client::{Client, Events, READ_SECONDS};
use crate::error::Result;

/// Events of a sandbox as they happen.
pub struct EventStream(Events);

impl Client {
    /// Current resource usage of a sandbox.
    pub async fn sandbox_metrics(&self, id: &SandboxId) -> Result<SandboxMetrics> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "metrics"], READ_SECONDS).receive().await
    }

    /// Usage of the workspace; times are RFC 3339.
    pub async fn usage(&self, from: Option<&str>, to: Option<&str>) -> Result<UsageReport> {
        let query: Vec<_> = [("from", from), ("to", to)]
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect();
        self.call(Method::GET, &["usage"], READ_SECONDS).query(&query).receive().await
    }

    /// The newest entries of the audit log, optionally of one sandbox.
    pub async fn audit(&self, sandbox: Option<&SandboxId>, limit: u32) -> Result<Vec<AuditEntry>> {
        let mut call =
            self.call(Method::GET, &["audit"], READ_SECONDS).query(&[("limit", &limit.to_string())]);
        if let Some(id) = sandbox {
            call = call.query(&[("sandbox_id", id.as_str())]);
        }
        Ok(call.receive::<AuditList>().await?.entries)
    }

    /// Verifies the installation's audit log after an entry; a long log takes several calls.
    pub async fn verify_audit(&self, after: Option<i64>) -> Result<AuditVerification> {
        let mut call = self.call(Method::GET, &["audit", "verify"], READ_SECONDS);
        if let Some(after) = after {
            call = call.query(&[("after", &after.to_string())]);
        }
        call.receive().await
    }

    /// Events of a sandbox, followed by new ones.
    pub async fn follow_events(&self, id: &SandboxId) -> Result<EventStream> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "events"]);
        call.query(&[("follow", "1")]).events().await.map(EventStream)
    }
}

impl EventStream {
    /// The next event; `None` once the sandbox is deleted or the server stops.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        let Some(event) = self.0.next().await? else { return Ok(None) };
        let bad = |error: serde_json::Error| self.0.interrupted(error.to_string());
        serde_json::from_str(&event.data).map(Some).map_err(bad)
    }
}
