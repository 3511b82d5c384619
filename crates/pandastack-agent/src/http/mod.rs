//! The agent's HTTP API, as described in `pandastack_types::agent_api`.
//!
//! Every request comes from control or an edge; [`crate::link`] checks that, in a layer around all routes.
//! Handlers translate, nothing more.

mod builds;
mod data;
mod edges;
mod endpoint;
mod failure;
mod frozen;
mod grant;
mod processes;
mod sandboxes;
mod trees;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use pandastack_types::agent_api::{PREFIX, REQUEST_ID_HEADER};
use tracing::Instrument;

use self::endpoint::Routes;
use crate::error::AgentError;
use crate::host::Host;

/// The whole API.
pub(crate) fn router(host: Arc<Host>) -> Router {
    Router::new()
        .nest(PREFIX, routes().into_router())
        .layer(middleware::from_fn_with_state(host.clone(), check_caller))
        .layer(middleware::from_fn(traced))
        .with_state(host)
}

fn routes() -> Routes {
    Routes::default()
        .host(sandboxes::host_report)
        .host(frozen::read)
        .host(frozen::set_verdicts)
        .host(edges::set)
        .host(sandboxes::create)
        .sandbox(sandboxes::read)
        .host(sandboxes::delete)
        .sandbox(sandboxes::patch)
        .sandbox(sandboxes::pause)
        .sandbox(sandboxes::resume)
        .sandbox(sandboxes::hibernate)
        .sandbox(sandboxes::wake)
        .sandbox(sandboxes::set_network)
        .sandbox(sandboxes::keep_awake)
        .sandbox(sandboxes::roll_back)
        .sandbox(sandboxes::fork)
        .sandbox(sandboxes::snapshot)
        .host(sandboxes::delete_snapshot)
        .host(volumes::create)
        .host(volumes::delete)
        .host(volumes::grow)
        .host(builds::bake)
        .host(builds::list)
        .host(builds::read)
        .sandbox(data::exec)
        .sandbox(data::exec_stream)
        .sandbox(data::read)
        .sandbox(data::write)
        .sandbox(data::remove)
        .sandbox(data::stat)
        .sandbox(data::make_directory)
        .sandbox(data::ports)
        .sandbox(data::logs)
        .sandbox(data::metrics)
        .sandbox(processes::list)
        .sandbox(processes::start)
        .sandbox(processes::read)
        .sandbox(processes::wait)
        .sandbox(processes::output)
        .sandbox(processes::signal)
        .sandbox(processes::resize)
        .sandbox(processes::write_stdin)
        .sandbox(processes::command_socket)
        .sandbox(processes::terminal_socket)
        .sandbox(processes::plain_terminal_socket)
        .sandbox(trees::list)
        .sandbox(trees::find)
        .sandbox(trees::grep)
        .sandbox(trees::watch)
        .sandbox(trees::copy)
        .sandbox(trees::rename)
        .sandbox(trees::set_attributes)
        .sandbox(trees::pack)
        .sandbox(trees::unpack)
        .sandbox(grant::grant)
        .sandbox(grant::tunnel)
}

/// Adds control's request id, and the request's sandbox, to everything logged for the request.
async fn traced(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("-");
    let path = request.uri().path();
    let sandbox = path.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix("/sandboxes/"));
    let sandbox = sandbox.and_then(|rest| rest.split('/').next());
    let span = tracing::info_span!("request", id, sandbox, method = %request.method(), path);
    next.run(request).instrument(span).await
}

async fn check_caller(State(host): State<Arc<Host>>, request: Request, next: Next) -> Response {
    match host.link.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => AgentError::from(refused).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pandastack_types::agent_api::endpoints;

    #[test]
    fn every_described_endpoint_is_served() {
        let routes = super::routes();
        let served: BTreeSet<_> = routes.registered().iter().copied().collect();
        let described: BTreeSet<_> = endpoints::ALL.iter().map(|one| (one.method, one.path)).collect();
        assert_eq!(served, described);
    }
}
