//! Access control: one table of required roles for every route.
//!
//! Must hold: a route that is not in the table is closed to all but owners, and a test fails until
//! it has a rule. A viewer's key reads no files, no output of programs and no logs, and wakes
//! nothing. Machines that hold a database's data refuse every sandbox route that is not in
//! [`OPEN_ON_SEALED`].

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use pandastack_rest::request_id::sandbox_of;
use pandastack_rest::{ApiResult, Caller};
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_types::api::Role;
use pandastack_types::{ID_CHARS, Result};

/// The access that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// A key of the workspace with that role at least.
    Role(Role),
    /// A key that manages the installation.
    Operator,
}

/// Lists and descriptions, which show no contents and wake nothing.
const VIEWER: &[&str] = &[
    "GET /v1/apps",
    "GET /v1/apps/{id}",
    "GET /v1/apps/{id}/deploys",
    "GET /v1/apps/{id}/domains",
    "GET /v1/apps/{id}/domains/{domain}",
    "GET /v1/apps/{id}/metrics",
    "GET /v1/apps/{id}/previews",
    "GET /v1/apps/{id}/previews/{number}",
    "GET /v1/databases",
    "GET /v1/databases/{id}",
    "GET /v1/databases/{id}/backups",
    "GET /v1/events",
    "GET /v1/functions",
    "GET /v1/functions/{id}",
    "GET /v1/functions/{id}/metrics",
    "GET /v1/functions/{id}/versions",
    "GET /v1/me",
    "GET /v1/me/quota",
    "GET /v1/me/workspace",
    "GET /v1/outdated",
    "GET /v1/preview-repos",
    "GET /v1/sandboxes",
    "GET /v1/sandboxes/{id}",
    "GET /v1/sandboxes/{id}/events",
    "GET /v1/sandboxes/{id}/lifecycle",
    "GET /v1/sandboxes/{id}/lineage",
    "GET /v1/sandboxes/{id}/metrics",
    "GET /v1/sandboxes/{id}/network",
    "GET /v1/sandboxes/{id}/preview",
    "GET /v1/schedules",
    "POST /v1/schedules/preview",
    "GET /v1/schedules/{id}",
    "GET /v1/schedules/{id}/next",
    "GET /v1/snapshots",
    "GET /v1/snapshots/{id}",
    "GET /v1/templates",
    "GET /v1/templates/builds",
    "GET /v1/templates/builds/{id}",
    "GET /v1/templates/{name}",
    "GET /v1/templates/{name}/tags",
    "GET /v1/usage",
    "GET /v1/volumes",
    "GET /v1/volumes/{name}",
    "GET /v1/webhooks",
    "GET /v1/webhooks/{id}",
    "GET /v1/webhooks/{id}/deliveries",
];

/// Everything that uses the workspace.
const DEVELOPER: &[&str] = &[
    "POST /v1/apps",
    "DELETE /v1/apps/{id}",
    "PATCH /v1/apps/{id}",
    "PUT /v1/apps/{id}/databases/{database}",
    "DELETE /v1/apps/{id}/databases/{database}",
    "POST /v1/apps/{id}/deploys",
    "GET /v1/apps/{id}/deploys/{deployment}",
    "POST /v1/apps/{id}/deploys/{deployment}/cancel",
    "GET /v1/apps/{id}/deploys/{deployment}/logs",
    "POST /v1/apps/{id}/domains",
    "DELETE /v1/apps/{id}/domains/{domain}",
    "GET /v1/apps/{id}/env",
    "POST /v1/apps/{id}/env/import",
    "PUT /v1/apps/{id}/env/{key}",
    "DELETE /v1/apps/{id}/env/{key}",
    "POST /v1/apps/{id}/keep-awake",
    "DELETE /v1/apps/{id}/previews/{number}",
    "POST /v1/apps/{id}/restart",
    "POST /v1/apps/{id}/rollback",
    "GET /v1/apps/{id}/runtime-logs",
    "POST /v1/databases",
    "DELETE /v1/databases/{id}",
    "PATCH /v1/databases/{id}",
    "POST /v1/databases/{id}/backups",
    "POST /v1/databases/{id}/branch",
    "POST /v1/databases/{id}/backups/drill",
    "POST /v1/databases/{id}/clone",
    "GET /v1/databases/{id}/connection",
    "POST /v1/databases/{id}/failover",
    "GET /v1/databases/{id}/logs",
    "POST /v1/databases/{id}/pause",
    "POST /v1/databases/{id}/query",
    "POST /v1/databases/{id}/reset-credentials",
    "GET /v1/databases/{id}/stats",
    "POST /v1/databases/{id}/wake",
    "POST /v1/functions",
    "DELETE /v1/functions/{id}",
    "PATCH /v1/functions/{id}",
    "PUT /v1/functions/{id}/aliases/{alias}",
    "DELETE /v1/functions/{id}/aliases/{alias}",
    "GET /v1/functions/{id}/code",
    "POST /v1/functions/{id}/deploy",
    "POST /v1/functions/{id}/invoke",
    "GET /v1/functions/{id}/logs",
    "POST /v1/functions/{id}/redrive",
    "POST /v1/functions/{id}/rollback",
    "GET /v1/functions/{id}/runs",
    "POST /v1/functions/{id}/runs",
    "GET /v1/functions/{id}/runs/{run}",
    "POST /v1/functions/{id}/runs/{run}/redrive",
    "GET /v1/functions/{id}/versions/{version}/log",
    "POST /v1/preview-repos",
    "DELETE /v1/preview-repos/{repo}",
    "GET /v1/repos/{repo}/preview-env",
    "POST /v1/repos/{repo}/preview-env/import",
    "PUT /v1/repos/{repo}/preview-env/{key}",
    "DELETE /v1/repos/{repo}/preview-env/{key}",
    "POST /v1/run",
    "POST /v1/sandboxes",
    "DELETE /v1/sandboxes/{id}",
    "POST /v1/sandboxes/{id}/exec",
    "GET /v1/sandboxes/{id}/exec/pty",
    "POST /v1/sandboxes/{id}/exec/stream",
    "GET /v1/sandboxes/{id}/exec/ws",
    "POST /v1/sandboxes/{id}/fork",
    "POST /v1/sandboxes/{id}/fork-tree",
    "GET /v1/sandboxes/{id}/fs",
    "PUT /v1/sandboxes/{id}/fs",
    "DELETE /v1/sandboxes/{id}/fs",
    "PATCH /v1/sandboxes/{id}/fs",
    "POST /v1/sandboxes/{id}/fs/copy",
    "GET /v1/sandboxes/{id}/fs/dir",
    "GET /v1/sandboxes/{id}/fs/find",
    "GET /v1/sandboxes/{id}/fs/grep",
    "POST /v1/sandboxes/{id}/fs/mkdir",
    "POST /v1/sandboxes/{id}/fs/rename",
    "POST /v1/sandboxes/{id}/fs/sign",
    "GET /v1/sandboxes/{id}/fs/stat",
    "GET /v1/sandboxes/{id}/fs/tar",
    "PUT /v1/sandboxes/{id}/fs/tar",
    "GET /v1/sandboxes/{id}/fs/watch",
    "POST /v1/sandboxes/{id}/hibernate",
    "POST /v1/sandboxes/{id}/keep-awake",
    "PATCH /v1/sandboxes/{id}/lifecycle",
    "GET /v1/sandboxes/{id}/logs",
    "PUT /v1/sandboxes/{id}/network",
    "POST /v1/sandboxes/{id}/pause",
    "GET /v1/sandboxes/{id}/ports",
    "PUT /v1/sandboxes/{id}/preview",
    "POST /v1/sandboxes/{id}/preview-token",
    "POST /v1/sandboxes/{id}/preview/revoke",
    "GET /v1/sandboxes/{id}/processes",
    "POST /v1/sandboxes/{id}/processes",
    "GET /v1/sandboxes/{id}/processes/{process}",
    "GET /v1/sandboxes/{id}/processes/{process}/output",
    "POST /v1/sandboxes/{id}/processes/{process}/resize",
    "POST /v1/sandboxes/{id}/processes/{process}/signal",
    "POST /v1/sandboxes/{id}/processes/{process}/stdin",
    "GET /v1/sandboxes/{id}/processes/{process}/wait",
    "POST /v1/sandboxes/{id}/promote",
    "GET /v1/sandboxes/{id}/repl/sessions",
    "POST /v1/sandboxes/{id}/repl/sessions",
    "DELETE /v1/sandboxes/{id}/repl/sessions/{context}",
    "POST /v1/sandboxes/{id}/repl/sessions/{context}/restart",
    "POST /v1/sandboxes/{id}/repl/sessions/{context}/run",
    "POST /v1/sandboxes/{id}/resume",
    "POST /v1/sandboxes/{id}/rollback",
    "POST /v1/sandboxes/{id}/snapshots",
    "GET /v1/sandboxes/{id}/ssh",
    "GET /v1/sandboxes/{id}/tunnel",
    "POST /v1/sandboxes/{id}/wake",
    "POST /v1/schedules",
    "DELETE /v1/schedules/{id}",
    "PATCH /v1/schedules/{id}",
    "GET /v1/schedules/{id}/runs",
    "GET /v1/schedules/{id}/runs/{run}",
    "POST /v1/schedules/{id}/runs/{run}/cancel",
    "POST /v1/schedules/{id}/trigger",
    "DELETE /v1/snapshots/{id}",
    "POST /v1/templates/build",
    "POST /v1/templates/builds",
    "POST /v1/templates/builds/{id}/cancel",
    "PUT /v1/templates/builds/{id}/files",
    "POST /v1/templates/builds/{id}/files/sign",
    "GET /v1/templates/builds/{id}/logs",
    "POST /v1/templates/builds/{id}/start",
    "POST /v1/templates/publish",
    "DELETE /v1/templates/{name}",
    "POST /v1/templates/{name}/bake",
    "POST /v1/templates/{name}/rebuild",
    "PUT /v1/templates/{name}/tags/{tag}",
    "DELETE /v1/templates/{name}/tags/{tag}",
    "POST /v1/volumes",
    "DELETE /v1/volumes/{name}",
    "PATCH /v1/volumes/{name}",
    "POST /v1/volumes/{name}/clone",
    "POST /v1/volumes/{name}/grow",
    "POST /v1/volumes/{name}/snapshot",
    "POST /v1/webhooks",
    "DELETE /v1/webhooks/{id}",
    "PATCH /v1/webhooks/{id}",
    "POST /v1/webhooks/{id}/deliveries/{delivery}/redeliver",
    "POST /v1/webhooks/{id}/rotate-secret",
    "POST /v1/webhooks/{id}/test",
];

/// The workspace itself: its keys, settings and audit log.
const OWNER: &[&str] = &[
    "GET /v1/audit",
    "GET /v1/console/sessions",
    "DELETE /v1/console/sessions/{id}",
    "GET /v1/members",
    "POST /v1/members",
    "DELETE /v1/members/{id}",
    "PATCH /v1/members/{id}",
    "GET /v1/members/sessions",
    "DELETE /v1/members/sessions/{id}",
    "GET /v1/me/tokens",
    "POST /v1/me/tokens",
    "DELETE /v1/me/tokens/{prefix}",
    "POST /v1/me/tokens/{prefix}/rotate",
    "PATCH /v1/me/workspace",
    "PUT /v1/templates/{name}/sharing",
];

/// Routes of the installation: hosts, workspaces and quotas.
const OPERATOR: &[&str] = &[
    "GET /v1/hosts",
    "DELETE /v1/hosts/{id}",
    "POST /v1/hosts/migrate",
    "POST /v1/hosts/tokens",
    "PUT /v1/me/quota",
    "GET /v1/audit/verify",
    "GET /v1/workspaces",
    "POST /v1/workspaces",
    "GET /v1/workspaces/{id}",
    "DELETE /v1/workspaces/{id}",
    "GET /v1/workspaces/{id}/quota",
    "PUT /v1/workspaces/{id}/quota",
    "POST /v1/workspaces/{id}/resume",
    "POST /v1/workspaces/{id}/suspend",
    "GET /v1/workspaces/{id}/tokens",
    "POST /v1/workspaces/{id}/tokens",
    "DELETE /v1/workspaces/{id}/tokens/{prefix}",
    "POST /v1/workspaces/{id}/tokens/{prefix}/rotate",
];

/// Routes of a sandbox that also answer for a machine with the data of a database: they show its
/// record and lead nowhere inside. Deleting has a refusal of its own, which names the service.
const OPEN_ON_SEALED: &[&str] = &[
    "GET /v1/sandboxes/{id}",
    "DELETE /v1/sandboxes/{id}",
    "GET /v1/sandboxes/{id}/events",
    "GET /v1/sandboxes/{id}/lifecycle",
    "GET /v1/sandboxes/{id}/lineage",
];

static RULES: LazyLock<HashMap<&'static str, Access>> = LazyLock::new(|| {
    let groups = [
        (VIEWER, Access::Role(Role::Viewer)),
        (DEVELOPER, Access::Role(Role::Developer)),
        (OWNER, Access::Role(Role::Owner)),
        (OPERATOR, Access::Operator),
    ];
    groups.into_iter().flat_map(|(routes, access)| routes.iter().map(move |route| (*route, access))).collect()
});

/// A route's name in the tables.
fn name(method: &Method, route: &str) -> String {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    format!("{method} {route}")
}

/// The route that a request was sent to.
fn route(request: &Request) -> String {
    let path = request.extensions().get::<MatchedPath>();
    name(request.method(), path.map_or("", MatchedPath::as_str))
}

/// Whether a route shows contents of a workspace, which viewers may not read.
pub(crate) fn shows_contents(request: &Request) -> bool {
    RULES.get(route(request).as_str()) == Some(&Access::Role(Role::Developer))
}

/// Refuses a caller that may not make this request.
pub(crate) fn check(caller: &Caller, request: &Request) -> Result<()> {
    match RULES.get(route(request).as_str()).copied().unwrap_or(Access::Role(Role::Owner)) {
        Access::Role(role) => caller.require(role),
        Access::Operator => caller.require_operator(),
    }
}

/// Layer around every route: only those of [`OPEN_ON_SEALED`] reach a machine that has the data of
/// a database. Root in that machine is superuser of its server.
pub(crate) async fn keep_sealed(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let path = format!("/v1{}", request.uri().path().trim_start_matches("/v1"));
    // A name, or the beginning of an id, leads to no machine of a service.
    if let Some(id) = sandbox_of(&path).filter(|id| id.as_str().len() == ID_CHARS)
        && !OPEN_ON_SEALED.contains(&route(&request).as_str())
        // Only machines that users may enter have a known location.
        && !sandboxes.is_located(&caller.workspace, &id)
    {
        ops::unsealed(&sandboxes, &caller.workspace, &id).await?;
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Routes that clients without a key of ours call, with credentials of their own.
    const WITHOUT_KEY: [&str; 9] = [
        "POST /v1/hooks/apps/{id}",
        "POST /v1/console/session",
        "DELETE /v1/console/session",
        "GET /v1/login",
        "GET /v1/login/start",
        "GET /v1/login/callback",
        "POST /v1/login/device",
        "POST /v1/login/token",
        "DELETE /v1/login/session",
    ];
    /// Routes that are not described: one is another's older name, and one only refuses.
    const NOT_DESCRIBED: [&str; 2] = ["POST /v1/databases/{id}/branch", "POST /v1/templates/build"];

    #[test]
    fn every_route_has_one_rule_and_every_rule_a_route() {
        let api: serde_json::Value = serde_json::from_str(&crate::openapi_json()).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in api["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().filter(|_| path.starts_with("/v1/")) {
                described.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        let listed: Vec<_> = [VIEWER, DEVELOPER, OWNER, OPERATOR].concat();
        let rules: BTreeSet<_> = listed.iter().map(|route| (*route).to_owned()).collect();
        assert_eq!(listed.len(), rules.len(), "a route has two rules");
        let known = |routes: &[&str]| routes.iter().map(|route| (*route).to_owned()).collect::<BTreeSet<_>>();
        let expected: BTreeSet<_> = described.difference(&known(&WITHOUT_KEY)).cloned().collect();
        let given: BTreeSet<_> = rules.difference(&known(&NOT_DESCRIBED)).cloned().collect();
        let without: Vec<_> = expected.difference(&given).collect();
        assert!(without.is_empty(), "routes without a rule in access.rs: {without:?}");
        let stale: Vec<_> = given.difference(&expected).collect();
        assert!(stale.is_empty(), "rules without a route: {stale:?}");
        assert!(known(OPEN_ON_SEALED).is_subset(&described));
    }

    #[test]
    fn viewers_have_no_modifying_routes() {
        let changing = VIEWER.iter().filter(|route| !route.starts_with("GET "));
        // The route computes times and stores nothing.
        assert_eq!(changing.collect::<Vec<_>>(), [&"POST /v1/schedules/preview"]);
    }
}
