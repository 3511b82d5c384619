//! Metrics of sandboxes, usage of workspaces, and the audit log.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use pandastack_rest::{ApiResult, Caller, Id, Query};
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_store::clock::now;
use pandastack_store::ledger::AuditSelect;
use pandastack_types::api::{AuditList, AuditVerification, SandboxMetrics, UsageReport};
use pandastack_types::limits::{AUDIT_PAGE_MAX, USAGE_SANDBOXES_MAX};
use pandastack_types::{Error, ErrorBody, Result, SandboxId};
use serde::Deserialize;

use crate::audit::verify::verify;
use crate::services::Services;

/// Entries of the audit log without a limit.
const AUDIT_PAGE_DEFAULT: u32 = 100;
/// Default period of a usage report.
const USAGE_DAYS_DEFAULT: i64 = 30;

/// Get a sandbox's current resource usage, as measured by the host and by the guest. Does not wake it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/metrics", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxMetrics), (status = 404, body = ErrorBody)))]
pub(crate) async fn metrics(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<SandboxMetrics>> {
    Ok(ops::metrics(&sandboxes, &caller.workspace, &id).await.map(Json)?)
}

#[derive(Deserialize)]
pub(crate) struct UsageArgs {
    from: Option<String>,
    to: Option<String>,
}

fn time(name: &str, text: Option<&str>, default: Timestamp) -> Result<Timestamp> {
    let Some(text) = text else { return Ok(default) };
    text.parse()
        .map_err(|_| Error::bad_request(format!("`{name}` must be a time such as 2026-01-31T00:00:00Z")))
}

/// Get the workspace's usage in total, by sandbox, by kind of service and by function. Running sandboxes are
/// counted up to the last minute.
#[utoipa::path(get, path = "/v1/usage", tag = "account",
    params(("from" = Option<String>, Query, description = "Start of the period (RFC 3339). Default: 30 days ago"), ("to" = Option<String>, Query)),
    responses((status = 200, body = UsageReport), (status = 400, body = ErrorBody)))]
pub(crate) async fn usage(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Query(args): Query<UsageArgs>,
) -> ApiResult<Json<UsageReport>> {
    let to = time("to", args.to.as_deref(), now())?;
    let period = SignedDuration::from_hours(24 * USAGE_DAYS_DEFAULT);
    let from = time("from", args.from.as_deref(), to.checked_sub(period).unwrap_or(Timestamp::MIN))?;
    if from > to {
        return Err(Error::bad_request("`from` must not be after `to`").into());
    }
    services.functions.runs.flush().await;
    let total = services.store.usage(&caller.workspace, from, to).await?;
    let mut sandboxes =
        services.store.usage_by_sandbox(&caller.workspace, from, to, USAGE_SANDBOXES_MAX + 1).await?;
    let truncated = sandboxes.len() > USAGE_SANDBOXES_MAX as usize;
    sandboxes.truncate(USAGE_SANDBOXES_MAX as usize);
    let functions =
        services.store.usage_by_function(&caller.workspace, from, to, USAGE_SANDBOXES_MAX).await?;
    let kinds = services.store.usage_by_kind(&caller.workspace, from, to).await?;
    Ok(Json(UsageReport { from, to, total, sandboxes, truncated, kinds, functions }))
}

#[derive(Deserialize)]
pub(crate) struct AuditArgs {
    before: Option<i64>,
    limit: Option<u32>,
    sandbox_id: Option<String>,
}

/// List calls that could change something in this workspace or read contents, and calls with refused keys,
/// newest first. Requires an owner key.
#[utoipa::path(get, path = "/v1/audit", tag = "account",
    params(("before" = Option<i64>, Query, description = "Return only entries older than this ID"),
        ("limit" = Option<u32>, Query), ("sandbox_id" = Option<String>, Query)),
    responses((status = 200, body = AuditList), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(crate) async fn audit(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Query(args): Query<AuditArgs>,
) -> ApiResult<Json<AuditList>> {
    let limit = args.limit.unwrap_or(AUDIT_PAGE_DEFAULT);
    if !(1..=AUDIT_PAGE_MAX).contains(&limit) {
        return Err(Error::bad_request(format!("`limit` must be 1 to {AUDIT_PAGE_MAX}")).into());
    }
    let sandbox = args.sandbox_id.map(|id| id.parse()).transpose();
    let sandbox = sandbox.map_err(|_| Error::bad_request("`sandbox_id` is not a valid sandbox id"))?;
    let select = AuditSelect { before: args.before, sandbox, limit };
    services.audit.flush().await;
    Ok(Json(AuditList { entries: services.store.audit(&caller.workspace, &select).await? }))
}

#[derive(Deserialize)]
pub(crate) struct VerifyAuditArgs {
    after: Option<i64>,
}

/// Verify the hash chain of the installation's audit log, oldest entries first. Requires an operator key.
#[utoipa::path(get, path = "/v1/audit/verify", tag = "account",
    params(("after" = Option<i64>, Query, description = "Verify only entries after this ID: `next` of the last call")),
    responses((status = 200, body = AuditVerification), (status = 403, body = ErrorBody)))]
pub(crate) async fn verify_audit(
    State(services): State<Arc<Services>>,
    Query(args): Query<VerifyAuditArgs>,
) -> ApiResult<Json<AuditVerification>> {
    services.audit.flush().await;
    Ok(Json(verify(services.store.as_ref(), args.after).await?))
}
