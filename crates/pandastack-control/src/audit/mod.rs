//! The audit log: every call that could change something or reads contents, with its result, and every call
//! whose key was refused ([`refusals`]). [`export`] sends it elsewhere.
//!
//! Entries are written after the response ([`pandastack_store::write_behind`]): a commit for each exec would
//! cost more than the exec's own bookkeeping. Lists and descriptions are not audited, nor are calls without
//! any key.

pub(crate) mod export;
pub(crate) mod refusals;
pub(crate) mod sink;
pub(crate) mod verify;

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

use crate::access;

/// Longest path stored; the path names the called route, not the sent data.
const PATH_CHARS_MAX: usize = 512;

/// Entries on their way into the store.
pub(crate) type AuditLog = WriteBehind<AuditRecord>;

/// Marks a response whose call is in the log.
#[derive(Debug, Clone, Copy)]
struct IsAudited;

/// Layer around every call with a key.
pub(crate) async fn audited(
    State(log): State<Arc<AuditLog>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if reads && !access::shows_contents(&request) {
        return next.run(request).await;
    }
    let began = Instant::now();
    let mut entry = entry(&request);
    (entry.token_prefix, entry.token_label) = (caller.prefix, caller.label);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(IsAudited);
    log.put(AuditRecord { workspace: caller.workspace, entry: ended(entry, began, &response) }).await;
    response
}

/// The entry of a request that begins now, without its caller.
fn entry(request: &Request) -> AuditEntry {
    let header = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = match route.as_deref() {
        // Inside the nested router the prefix is gone from the path.
        Some(route) if route.starts_with("/v1/") => {
            format!("/v1{}", request.uri().path().trim_start_matches("/v1"))
        }
        _ => request.uri().path().to_owned(),
    };
    AuditEntry {
        id: 0,
        at: now(),
        token_prefix: String::new(),
        token_label: String::new(),
        method: request.method().as_str().chars().take(16).collect(),
        route: route.unwrap_or_else(|| "unknown".to_owned()),
        sandbox_id: sandbox_of(&path),
        path: path.chars().take(PATH_CHARS_MAX).collect(),
        status: 0,
        request_id: header.unwrap_or_default().to_owned(),
        took_ms: 0,
    }
}

fn ended(entry: AuditEntry, began: Instant, response: &Response) -> AuditEntry {
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    AuditEntry { status: response.status().as_u16(), took_ms, ..entry }
}
