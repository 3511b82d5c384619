//! The HTTP routes: one file per resource, assembled here.

pub(crate) mod data;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod health;
pub(crate) mod hosts;
pub(crate) mod internal;
pub(crate) mod lifecycle;
pub(crate) mod members;
pub(crate) mod network;
pub(crate) mod observe;
pub(crate) mod outdated;
pub(crate) mod preview;
pub(crate) mod processes;
pub(crate) mod quota;
pub(crate) mod run;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
pub(crate) mod snapshots;
pub(crate) mod sockets;
pub(crate) mod tokens;
pub(crate) mod volumes;
pub(crate) mod workspace;
pub(crate) mod workspaces;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use http::{Method, StatusCode, Uri, header};
use pandastack_contexts::routes::Contexts;
use pandastack_rest::ApiError;
use pandastack_rest::request_id::with_request_id;
use pandastack_types::agent_api::internal as paths;
use pandastack_types::{Error, ErrorCode};

use crate::access::keep_sealed;
use crate::audit::audited;
use crate::audit::refusals::refused;
use crate::auth::authenticate;
use crate::body_budget::{BodyBudget, budgeted};
use crate::console;
use crate::fleet::caller::identified;
use crate::fleet::join;
use crate::idempotency::once;
use crate::login;
use crate::metrics::counted;
use crate::replicas::{from_replica, to_leader};
use crate::services::{ServerState, Services};
use crate::unread_body::close_unread;

/// The public API, health and metrics.
pub(crate) fn public(services: Arc<Services>) -> Router {
    let v1 = once_only(&services)
        .layer(from_fn_with_state(services.member(), once))
        .merge(repeatable(&services))
        .layer(from_fn_with_state(Arc::clone(&services.sandboxes), keep_sealed))
        .layer(from_fn_with_state(Arc::clone(&services.audit), audited))
        .layer(from_fn_with_state(Arc::clone(&services.keys), authenticate));
    let router = Router::new()
        .nest("/v1", v1)
        .merge(console::routes::open())
        .merge(login::routes::open())
        .merge(pandastack_console::router().with_state(()))
        .merge(pandastack_apps::hooks::routes(&services.apps).with_state(()))
        .merge(pandastack_databases::routes::broker(&services.databases).with_state(()))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/version", get(health::version))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(health::openapi));
    finish(router, services)
}

/// Routes of another API, which has errors of its own form.
pub(crate) fn facade(router: Router) -> Router {
    router.layer(from_fn(close_unread))
}

/// With bodies that are held within a budget.
pub(crate) fn within_budget(router: Router, budget: &Arc<BodyBudget>) -> Router {
    router.layer(from_fn_with_state(Arc::clone(budget), budgeted))
}

/// With calls whose key was refused in the audit log, also those of other APIs.
pub(crate) fn with_refusals_audited(router: Router, services: Arc<Services>) -> Router {
    router.layer(from_fn_with_state(services, refused))
}

/// With requests to functions' own host names answered before anything else.
pub(crate) fn with_functions_by_host(router: Router, services: Arc<Services>) -> Router {
    router
        .layer(from_fn_with_state(Arc::clone(&services.functions), pandastack_functions::by_host))
        .layer(from_fn_with_state(services.member(), to_leader))
        .layer(from_fn(with_request_id))
        .layer(from_fn_with_state(Arc::clone(&services.metrics), counted))
}

/// Routes for agents and other replicas. Other requests go to the public API: replicas forward
/// them.
pub(crate) fn private(services: Arc<Services>, public: Router) -> Router {
    let router = Router::new()
        .route(paths::IN_FLIGHT, get(internal::marks))
        .route(paths::HOST_REPORT, post(internal::report))
        .route(paths::DATABASES, get(internal::database))
        .route(paths::EDGE_NAME, get(internal::name))
        .route(paths::ROUTE_CHANGES, get(internal::route_changes))
        .route(paths::EDGE_ROUTE, get(internal::route));
    router
        .layer(from_fn_with_state(services.member(), to_leader))
        // About this very server, whether it leads or not.
        .route(paths::SECRETS, get(secrets::status).post(secrets::reload))
        .route(paths::CERTIFICATE, post(join::renew))
        .layer(from_fn_with_state(Arc::clone(&services), identified))
        // Hosts that are not members yet.
        .route(paths::JOIN, post(join::join))
        .layer(map_response(never_plain))
        .layer(from_fn(close_unread))
        .layer(from_fn(with_request_id))
        .layer(from_fn_with_state(Arc::clone(&services.metrics), counted))
        .with_state(ServerState(Arc::clone(&services)))
        .fallback_service(public.layer(from_fn_with_state(services.link.clone(), from_replica)))
}

fn finish(router: Router<ServerState>, services: Arc<Services>) -> Router {
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(map_response(never_plain))
        .layer(from_fn(close_unread))
        .layer(from_fn(with_request_id))
        .layer(from_fn_with_state(Arc::clone(&services.metrics), counted))
        .with_state(ServerState(services))
}

/// Calls that create a resource and accept an `Idempotency-Key`. Creating an API key is excluded:
/// its response is a secret, and must not be stored.
fn once_only(services: &Arc<Services>) -> Router<ServerState> {
    Router::new()
        .route("/sandboxes", post(sandboxes::create))
        .route("/sandboxes/{id}/fork", post(fork::fork))
        .route("/sandboxes/{id}/fork-tree", post(fork::fork_tree))
        .route("/sandboxes/{id}/promote", post(fork::promote))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/run", post(run::run))
        .merge(volumes::once_only().with_state(Arc::clone(services)))
        .merge(pandastack_templates::routes::once_only(&services.templates).with_state(()))
        .merge(pandastack_functions::once_only(&services.functions).with_state(()))
        .merge(pandastack_scheduler::routes::once_only(&services.scheduler).with_state(()))
        .merge(pandastack_apps::routes::once_only(&services.apps).with_state(()))
}

fn repeatable(services: &Arc<Services>) -> Router<ServerState> {
    let (machines, background) = (services.sandboxes.machines(), services.background.clone());
    let contexts = Contexts { machines, background };
    Router::new()
        .route("/sandboxes", get(sandboxes::list))
        .route("/sandboxes/{id}", get(sandboxes::get).merge(delete(sandboxes::delete)))
        .route("/sandboxes/{id}/exec", post(data::exec))
        .route("/sandboxes/{id}/exec/stream", post(data::exec_stream))
        .merge(processes::routes().with_state(Arc::clone(&services.sandboxes)))
        .merge(sockets::routes().with_state(Arc::clone(services)))
        .merge(pandastack_contexts::routes::router(contexts).with_state(()))
        .merge(pandastack_templates::routes::repeatable(&services.templates).with_state(()))
        .merge(pandastack_functions::repeatable(&services.functions).with_state(()))
        .merge(pandastack_scheduler::routes::repeatable(&services.scheduler).with_state(()))
        .merge(pandastack_event_webhooks::routes::routes(&services.event_webhooks).with_state(()))
        .merge(pandastack_apps::routes::repeatable(&services.apps).with_state(()))
        .merge(volumes::repeatable().with_state(Arc::clone(services)))
        .merge(pandastack_databases::routes::routes(&services.databases).with_state(()))
        .merge(pandastack_databases::backups::routes::routes(&services.databases).with_state(()))
        .route(
            "/sandboxes/{id}/fs",
            get(data::read)
                .merge(put(data::write))
                .merge(delete(data::remove))
                .merge(patch(files::set_attributes)),
        )
        .route("/sandboxes/{id}/fs/dir", get(data::list_dir))
        .route("/sandboxes/{id}/fs/stat", get(data::stat))
        .route("/sandboxes/{id}/fs/mkdir", post(data::mkdir))
        .route("/sandboxes/{id}/fs/rename", post(data::rename))
        .route("/sandboxes/{id}/fs/copy", post(files::copy))
        .route("/sandboxes/{id}/fs/find", get(files::find))
        .route("/sandboxes/{id}/fs/grep", get(files::grep))
        .route("/sandboxes/{id}/fs/tar", get(files::pack).merge(put(files::unpack)))
        .route("/sandboxes/{id}/fs/watch", get(files::watch))
        .route("/sandboxes/{id}/fs/sign", post(files::sign))
        .route("/templates/builds/{id}/files/sign", post(files::sign_build_files))
        .route("/sandboxes/{id}/metrics", get(observe::metrics))
        .route("/sandboxes/{id}/ports", get(preview::ports))
        .route("/sandboxes/{id}/network", get(network::get).merge(put(network::set)))
        .route("/sandboxes/{id}/preview", get(preview::get).merge(put(preview::set)))
        .route("/sandboxes/{id}/preview/revoke", post(preview::revoke))
        .route("/sandboxes/{id}/preview-token", post(preview::sign))
        .route("/sandboxes/{id}/tunnel", get(preview::tunnel))
        .route("/sandboxes/{id}/logs", get(data::logs))
        .route("/sandboxes/{id}/pause", post(lifecycle::pause))
        .route("/sandboxes/{id}/resume", post(lifecycle::resume))
        .route("/sandboxes/{id}/hibernate", post(lifecycle::hibernate))
        .route("/sandboxes/{id}/wake", post(lifecycle::wake))
        .route("/sandboxes/{id}/keep-awake", post(lifecycle::keep_awake))
        .route("/sandboxes/{id}/rollback", post(snapshots::rollback))
        .route("/sandboxes/{id}/lineage", get(fork::lineage))
        .route("/sandboxes/{id}/lifecycle", get(lifecycle::show).merge(patch(lifecycle::change)))
        .route("/sandboxes/{id}/events", get(events::events))
        .route("/snapshots", get(snapshots::list))
        .route("/snapshots/{id}", get(snapshots::get).merge(delete(snapshots::delete)))
        .route("/me", get(tokens::me))
        .route("/me/quota", get(quota::get).merge(put(quota::set)))
        .route("/me/workspace", get(workspace::get).merge(patch(workspace::change)))
        .route("/me/tokens", get(tokens::list).merge(post(tokens::create)))
        .route("/me/tokens/{prefix}", delete(tokens::delete))
        .route("/me/tokens/{prefix}/rotate", post(tokens::rotate))
        .route("/workspaces", get(workspaces::list).merge(post(workspaces::create)))
        .route("/workspaces/{id}", get(workspaces::get).merge(delete(workspaces::delete)))
        .route("/workspaces/{id}/suspend", post(workspaces::suspend))
        .route("/workspaces/{id}/resume", post(workspaces::resume))
        .route("/workspaces/{id}/quota", get(workspaces::quota).merge(put(workspaces::set_quota)))
        .route("/workspaces/{id}/tokens", get(workspaces::list_tokens).merge(post(workspaces::create_token)))
        .route("/workspaces/{id}/tokens/{prefix}", delete(workspaces::delete_token))
        .route("/workspaces/{id}/tokens/{prefix}/rotate", post(workspaces::rotate_token))
        .merge(console::routes::routes())
        .merge(members::routes())
        .route("/events", get(console::events::events))
        .route("/hosts", get(hosts::list))
        .route("/hosts/migrate", post(hosts::migrate))
        .route("/hosts/tokens", post(hosts::create_token))
        .route("/hosts/{id}", delete(hosts::remove))
        .route("/outdated", get(outdated::list))
        .route("/usage", get(observe::usage))
        .route("/audit", get(observe::audit))
        .route("/audit/verify", get(observe::verify_audit))
}

async fn unknown_route(uri: Uri) -> ApiError {
    Error::not_found("route", uri.path()).into()
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    Error::new(ErrorCode::MethodNotAllowed, format!("`{path}` does not support {method}")).into()
}

/// The framework's own refusals (a malformed path, say) are plain text; ours are JSON, or pages for browsers.
async fn never_plain(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_ours = |kind: &str| kind.starts_with("application/json") || kind.starts_with("text/html");
    if !is_error || kind.is_some_and(is_ours) {
        return response;
    }
    let error = match status {
        StatusCode::NOT_FOUND => Error::new(ErrorCode::NotFound, "not found; check the URL"),
        StatusCode::METHOD_NOT_ALLOWED => Error::new(ErrorCode::MethodNotAllowed, "method not allowed"),
        StatusCode::PAYLOAD_TOO_LARGE => Error::new(ErrorCode::BodyTooLarge, "the request body is too large"),
        status if status.is_client_error() => Error::bad_request("the request is malformed"),
        _ => Error::internal(format!("a handler answered {status} without a body")),
    };
    ApiError(error).into_response()
}
