//! Entries of the audit log about hosts: joins, and refused requests.
//!
//! They belong to the workspace `default`. Strangers can cause refusals, so these share the budget of refused
//! API keys.

use std::time::Instant;

use http::StatusCode;
use http::request::Parts;
use pandastack_store::clock::now;
use pandastack_store::ledger::AuditRecord;
use pandastack_types::WorkspaceId;
use pandastack_types::api::AuditEntry;

use crate::services::Services;

/// Longest path stored.
const PATH_CHARS_MAX: usize = 512;
/// Longest label stored.
const LABEL_CHARS_MAX: usize = 200;

/// A refused request. `credential` is the public part of what it showed.
pub(crate) async fn refused(services: &Services, parts: &Parts, credential: &str, status: StatusCode) {
    if services.refusals.take(Instant::now()) {
        let label =
            super::caller::peer(&parts.extensions).map(|peer| format!("{peer:?}")).unwrap_or_default();
        put(services, parts, (credential, &label), status).await;
    }
}

/// A request that was served, by the token or host and about a host.
pub(crate) async fn put(services: &Services, parts: &Parts, by: (&str, &str), status: StatusCode) {
    let path: String = parts.uri.path().chars().take(PATH_CHARS_MAX).collect();
    let entry = AuditEntry {
        id: 0,
        at: now(),
        token_prefix: by.0.to_owned(),
        token_label: by.1.chars().take(LABEL_CHARS_MAX).collect(),
        method: parts.method.as_str().chars().take(16).collect(),
        route: path.clone(),
        path,
        sandbox_id: None,
        status: status.as_u16(),
        request_id: String::new(),
        took_ms: 0,
    };
    services.audit.put(AuditRecord { workspace: WorkspaceId::default_workspace(), entry }).await;
}
