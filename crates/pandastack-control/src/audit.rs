//! The audit log: every call that could change something, with its result.
//!
//! Entries are written behind the answer ([`pandastack_store::write_behind`]): a commit for each exec would cost more than the exec's
//! own bookkeeping. Reads are not audited, nor are calls without a good key, which change nothing.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use pandastack_rest::Caller;
use pandastack_rest::request_id::{REQUEST_ID, sandbox_of};
use pandastack_store::clock::now;
use pandastack_store::ledger::AuditRecord;
use pandastack_store::write_behind::WriteBehind;
use pandastack_types::api::AuditEntry;

/// Longest path that is kept; it names what was called, not what was sent.
const PATH_CHARS_MAX: usize = 512;

/// Entries on their way into the store.
pub(crate) type AuditLog = WriteBehind<AuditRecord>;

/// Layer around every call with a key.
pub(crate) async fn audited(
    State(log): State<Arc<AuditLog>>,
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
    log.put(AuditRecord { workspace: caller.workspace, entry }).await;
    response
}
