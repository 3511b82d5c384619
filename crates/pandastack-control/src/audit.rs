//! The audit log: every call that could change something, whatever came of it.
//!
//! Entries are written behind the answer, in batches, by one task ([`AuditLog::write`]): a commit for each exec would cost
//! more than the exec's own bookkeeping. The queue is bounded and a full one makes calls wait, so nothing is left out to be
//! faster; what a crash can lose is the batch under way, some milliseconds of calls. Reads are not audited, nor are
//! calls without a good key, which change nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use pandastack_types::api::AuditEntry;
use pandastack_types::limits::AUDIT_QUEUE_MAX;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::app::{App, now};
use crate::auth::Caller;
use crate::request_id::REQUEST_ID;
use crate::store::Store;
use crate::store::ledger::AuditRecord;

/// Entries written in one transaction.
const BATCH_MAX: usize = 256;
/// Longest path that is kept; it names what was called, not what was sent.
const PATH_CHARS_MAX: usize = 512;
/// How long the task waits after a batch that could not be written.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Entries on their way into the store.
pub(crate) struct AuditLog {
    sender: mpsc::Sender<AuditRecord>,
    receiver: Mutex<mpsc::Receiver<AuditRecord>>,
}

impl Default for AuditLog {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(AUDIT_QUEUE_MAX);
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl AuditLog {
    /// Writes entries until told to stop, then what is left. Only one task does this.
    pub(crate) async fn write(&self, store: &dyn Store, stop: &CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let stopped = tokio::select! {
                biased;
                count = receiver.recv_many(&mut batch, BATCH_MAX) => count == 0,
                () = stop.cancelled() => true,
            };
            while let Err(error) = store.insert_audit(&batch).await {
                tracing::error!(%error, entries = batch.len(), "the audit log could not be written; trying again");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY_AFTER) => {}
                }
            }
            batch.clear();
            if stopped && receiver.is_empty() {
                return;
            }
        }
    }
}

/// Layer around every call with a key.
pub(crate) async fn audited(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    let (began, at) = (Instant::now(), now());
    let header = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = format!("/v1{}", request.uri().path().trim_start_matches("/v1"));
    let mut entry = AuditEntry {
        id: 0,
        at,
        token_prefix: caller.prefix,
        token_label: caller.label,
        method: request.method().as_str().chars().take(16).collect(),
        route: route.unwrap_or_else(|| "unknown".to_owned()),
        sandbox_id: sandbox_of(&path),
        path: path.chars().take(PATH_CHARS_MAX).collect(),
        status: 0,
        request_id: header.unwrap_or_default().to_owned(),
        took_ms: 0,
    };
    let response = next.run(request).await;
    entry.status = response.status().as_u16();
    entry.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let record = AuditRecord { workspace: caller.workspace, entry };
    if app.audit.sender.send(record).await.is_err() {
        tracing::error!("the audit log is closed; a call was not written down");
    }
    response
}

/// The sandbox that a path names.
pub(crate) fn sandbox_of(path: &str) -> Option<pandastack_types::SandboxId> {
    path.strip_prefix("/v1/sandboxes/")?.split('/').next()?.parse().ok()
}
