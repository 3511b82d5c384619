//! Sends the audit log elsewhere, in order, as it grows.
//!
//! The store remembers the last entry that arrived, so a restart or a change of leader leaves nothing out. A
//! server may get a batch twice; entries have ids.

use std::sync::Arc;
use std::time::Duration;

use pandastack_types::limits::AUDIT_EXPORT_BATCH_MAX;
use pandastack_types::{Result, chain};

use super::sink::AuditSink;
use crate::services::Services;

/// Longest pause: other servers on the same database do not notify this one of their entries.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Exports until shutdown. Only the leader does.
pub(crate) async fn run(services: Arc<Services>) {
    let Some(sink) = &services.audit_sink else { return };
    let client = match pandastack_http::builder().redirect(reqwest::redirect::Policy::none()).build() {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(error = %chain(&error), "cannot export the audit log; restart control to retry");
            return;
        }
    };
    let mut written = services.audit.written();
    let work = async {
        loop {
            written.mark_unchanged();
            match next_batch(&services, sink, &client).await {
                Ok(true) => {}
                Ok(false) => {
                    // Cannot fail: the sender lives as long as the server.
                    let _ = tokio::time::timeout(CHECK_EVERY, written.changed()).await;
                }
                Err(error) => {
                    tracing::warn!(?sink, error, "cannot export the audit log; retrying");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    };
    services.background.shutdown.run_until_cancelled(work).await;
}

/// Exports some entries. Whether there were any.
async fn next_batch(services: &Services, sink: &AuditSink, client: &reqwest::Client) -> Result<bool, String> {
    let store = services.store.as_ref();
    let after = store.audit_exported().await.map_err(|error| chain(&error))?;
    let lines = store.audit_lines(after, AUDIT_EXPORT_BATCH_MAX).await.map_err(|error| chain(&error))?;
    let Some(last) = lines.last() else { return Ok(false) };
    sink.send(client, &lines).await.map_err(|error| chain(&error))?;
    store.put_audit_exported(last.entry.id).await.map_err(|error| chain(&error))?;
    Ok(true)
}
