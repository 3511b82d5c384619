//! The agent's HTTP API, as described in `pandastack_types::agent_api`.
//!
//! Every request is signed by control; the check is a layer around all routes. Handlers translate, nothing more.

mod builds;
mod data;
mod door;
mod processes;
mod sandboxes;
mod trees;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use pandastack_types::agent_api::{INCARNATION_HEADER, REQUEST_ID_HEADER};
use pandastack_types::limits;
use pandastack_types::link::{Direction, LINK_HEADER};

use tracing::Instrument;

use crate::error::AgentError;
use crate::host::Host;

type Shared = State<Arc<Host>>;

/// The whole API.
pub(crate) fn router(host: Arc<Host>) -> Router {
    let api = Router::new()
        .route("/host", get(sandboxes::host_report))
        .route("/sandboxes", post(sandboxes::create))
        .route("/sandboxes/{id}", get(sandboxes::look).delete(sandboxes::remove).patch(sandboxes::patch))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/hibernate", post(sandboxes::hibernate))
        .route("/sandboxes/{id}/wake", post(sandboxes::wake))
        .route("/sandboxes/{id}/network", put(sandboxes::set_network))
        .route("/sandboxes/{id}/keep-awake", post(sandboxes::keep_awake))
        .route("/sandboxes/{id}/rollback", post(sandboxes::rollback))
        .route("/sandboxes/{id}/fork", post(sandboxes::fork))
        .route("/sandboxes/{id}/snapshots", post(sandboxes::snapshot))
        .route("/snapshots/{id}", delete(sandboxes::remove_snapshot))
        .route("/volumes", post(volumes::create))
        .route("/volumes/{id}", delete(volumes::remove))
        .route("/volumes/{id}/grow", post(volumes::grow))
        .route("/templates/{name}/bake", post(builds::bake))
        .route("/builds", get(builds::list))
        .route("/builds/{id}", get(builds::look))
        .route("/sandboxes/{id}/exec", post(data::exec))
        .route("/sandboxes/{id}/exec/stream", post(data::exec_stream))
        .merge(processes::routes())
        .route("/sandboxes/{id}/fs/dir", get(trees::list))
        .route("/sandboxes/{id}/fs/find", get(trees::find))
        .route("/sandboxes/{id}/fs/grep", get(trees::grep))
        .route("/sandboxes/{id}/fs/watch", get(trees::watch))
        .route("/sandboxes/{id}/fs/copy", post(trees::copy))
        .route("/sandboxes/{id}/fs/stat", get(data::stat))
        .route("/sandboxes/{id}/fs/mkdir", post(data::mkdir))
        .route("/sandboxes/{id}/fs/rename", post(trees::rename))
        .route("/sandboxes/{id}/ports", get(data::ports))
        .route("/sandboxes/{id}/logs", get(data::logs))
        .route("/sandboxes/{id}/metrics", get(data::metrics))
        .route("/sandboxes/{id}/door", post(door::door))
        .route("/sandboxes/{id}/tunnel", post(door::tunnel))
        .layer(DefaultBodyLimit::max(limits::JSON_BODY_BYTES_MAX));
    // Uploads stream and have a limit of their own.
    let streamed = Router::new()
        .route(
            "/sandboxes/{id}/fs",
            get(data::read).put(data::write).delete(data::remove).patch(trees::set_attributes),
        )
        .route("/sandboxes/{id}/fs/tar", get(trees::pack).put(trees::unpack))
        .merge(processes::streamed_routes())
        .layer(DefaultBodyLimit::disable());
    Router::new()
        .nest("/agent/v1", api.merge(streamed))
        .layer(middleware::from_fn_with_state(host.clone(), check_signature))
        .layer(middleware::from_fn(traced))
        .with_state(host)
}

/// Puts the id that control gave a request, and the sandbox it is about, beside everything that is logged for it.
async fn traced(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("-");
    let path = request.uri().path();
    let sandbox = path.strip_prefix("/agent/v1/sandboxes/").and_then(|rest| rest.split('/').next());
    let span = tracing::info_span!("request", id, sandbox, method = %request.method(), path);
    next.run(request).instrument(span).await
}

async fn check_signature(State(host): Shared, request: Request, next: Next) -> Response {
    let header = request.headers().get(LINK_HEADER).and_then(|value| value.to_str().ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let now = jiff::Timestamp::now().as_second();
    let checked =
        host.config.link.verify(Direction::ControlToAgent, header, request.method().as_str(), path, now);
    match checked {
        Ok(meant) if meant == host.config.host => next.run(request).await,
        Ok(_) => AgentError::from(pandastack_types::link::LinkRefused::Mismatch).into_response(),
        Err(refused) => AgentError::from(refused).into_response(),
    }
}

/// The sandbox of a request's path, if the caller means its present life.
struct Target(crate::sandbox::SandboxHandle);

impl FromRequestParts<Arc<Host>> for Target {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, host: &Arc<Host>) -> Result<Self, AgentError> {
        let bad = |error: String| AgentError::BadRequest(error);
        let axum::extract::Path(path) =
            axum::extract::Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, host)
                .await
                .map_err(|error| bad(error.to_string()))?;
        let id = path.get("id").map(String::as_str).unwrap_or_default();
        let id = id.parse().map_err(|error: pandastack_types::IdError| bad(error.to_string()))?;
        let handle = host.sandbox(&id)?;
        if let Some(meant) = parts.headers.get(INCARNATION_HEADER) {
            let meant = meant.to_str().ok().and_then(|text| text.parse().ok());
            handle
                .check_incarnation(meant.ok_or_else(|| bad("the incarnation is not a number".to_owned()))?)?;
        }
        Ok(Target(handle))
    }
}
