//! Entries for calls with a refused key: an unknown, deleted or expired key, a key used from a
//! network it does not allow, or a key whose role does not suffice.
//!
//! They belong to the workspace of the key with that prefix, or to `default` if no key has it.
//! Strangers can cause them, so their rate is limited; beyond the limit they are only counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use pandastack_store::ledger::AuditRecord;
use pandastack_types::limits::AUDIT_REFUSALS_PER_SECOND;
use pandastack_types::{WorkspaceId, api_key, chain};

use super::{IsAudited, ended, entry};
use crate::api_key::API_KEY_HEADER;
use crate::auth;
use crate::services::Services;

/// Replaces a prefix that no key of ours could have.
const UNKNOWN: &str = "unknown";
/// The time that a budget is for.
const WINDOW: Duration = Duration::from_secs(1);

/// Budget for refusals to record.
#[derive(Debug, Default)]
pub(crate) struct RefusalBudget(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    used: u32,
    left_out: u64,
}

impl RefusalBudget {
    /// Reserves one entry; `false` when the budget is used up.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = window.take_if(|window| now.duration_since(window.began) >= WINDOW)
            && old.left_out > 0
        {
            tracing::warn!(count = old.left_out, "refused requests were left out of the audit log");
        }
        let window = window.get_or_insert(Window { began: now, used: 0, left_out: 0 });
        let fits = window.used < AUDIT_REFUSALS_PER_SECOND;
        if fits {
            window.used += 1;
        } else {
            window.left_out += 1;
        }
        fits
    }
}

/// Layer around everything that checks keys.
pub(crate) async fn refused(State(services): State<Arc<Services>>, request: Request, next: Next) -> Response {
    let Some(prefix) = presented(request.headers()) else { return next.run(request).await };
    let (began, mut entry) = (Instant::now(), entry(&request));
    let response = next.run(request).await;
    let is_refusal = matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let is_audited = response.extensions().get::<IsAudited>().is_some();
    if !is_refusal || is_audited || !services.refusals.take(began) {
        return response;
    }
    let token = services.store.token(&prefix).await.unwrap_or_else(|error| {
        tracing::warn!(error = %chain(&error), "cannot find the workspace of a refused key");
        None
    });
    let (workspace, label) = token
        .map_or_else(|| (WorkspaceId::default_workspace(), String::new()), |key| (key.workspace, key.label));
    (entry.token_prefix, entry.token_label) = (prefix, label);
    services.audit.put(AuditRecord { workspace, entry: ended(entry, began, &response) }).await;
    response
}

/// The public part of the key that a request presents, if it presents one.
fn presented(headers: &HeaderMap) -> Option<String> {
    let secret = match headers.get(http::header::AUTHORIZATION) {
        Some(value) => value.to_str().ok().and_then(|text| text.split_once(' ')).map(|(_, secret)| secret),
        None => headers.get(API_KEY_HEADER)?.to_str().ok(),
    };
    let key = secret.map(|secret| api_key::canonical(secret.trim()));
    Some(key.as_deref().and_then(auth::public_part).unwrap_or(UNKNOWN).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_refusals_are_limited_per_second() {
        let (budget, at) = (RefusalBudget::default(), Instant::now());
        let written = (0..1000).filter(|_| budget.take(at)).count();
        assert_eq!(written, AUDIT_REFUSALS_PER_SECOND as usize);
        assert!(budget.take(at + WINDOW));
    }

    #[test]
    fn only_the_public_prefix_of_a_key_is_recorded() {
        let of = |name: &'static str, value: &str| {
            presented(&HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]))
        };
        let key = "pds_0123456789abcdef0123456789abcdef";
        assert_eq!(of("authorization", &format!("Bearer {key}")).as_deref(), Some("pds_01234567"));
        assert_eq!(of("x-api-key", key).as_deref(), Some("pds_01234567"));
        let form = api_key::for_e2b(key).unwrap();
        assert_eq!(of("x-api-key", &form).as_deref(), Some("pds_01234567"));
        assert_eq!(of("authorization", "Bearer hunter2").as_deref(), Some(UNKNOWN));
        assert_eq!(of("x-api-key", "pds_ébcdéfgh").as_deref(), Some(UNKNOWN));
        assert_eq!(of("cookie", key), None);
    }
}
