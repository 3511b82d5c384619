//! WebSockets of a sandbox: control authenticates, finds the host, and relays bytes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use http::{HeaderName, StatusCode, header};
use hyper_util::rt::TokioIo;
use pandastack_rest::{ApiResult, Caller, Id};
use pandastack_sandboxes::ops;
use pandastack_types::agent_api::endpoints::{CommandSocket, PlainTerminalSocket, TerminalSocket};
use pandastack_types::agent_api::{Endpoint, PassThrough, Upgrade, WebSocketProtocol};
use pandastack_types::{Error, ErrorBody, Result, SandboxId, chain};

use super::data::{agent_query, picked};

use crate::services::Services;

/// Headers of a WebSocket handshake.
const HANDSHAKE: [HeaderName; 6] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
];

pub(super) fn routes() -> Router<Arc<Services>> {
    Router::new()
        .route("/sandboxes/{id}/exec/ws", get(commands))
        .route("/sandboxes/{id}/exec/pty", get(terminal))
        .route("/sandboxes/{id}/ssh", get(plain_terminal))
}

/// Run several commands over one WebSocket.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/exec/ws", tag = "processes", params(("id" = SandboxId, Path),
    ("encoding" = Option<String>, Query, description = "Encoding of output: `text` or `base64`")),
    responses((status = 101), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn commands(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    Ok(tunnel(&services, &caller, &id, CommandSocket::pass_through, request).await?)
}

/// Open a terminal on a WebSocket, or attach to an existing one at an offset.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/exec/pty", tag = "processes", params(("id" = SandboxId, Path),
    ("rows" = Option<u16>, Query), ("cols" = Option<u16>, Query), ("user" = Option<String>, Query),
    ("process" = Option<u64>, Query), ("offset" = Option<u64>, Query)),
    responses((status = 101), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn terminal(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    Ok(tunnel(&services, &caller, &id, TerminalSocket::pass_through, request).await?)
}

/// Open a terminal on a WebSocket that carries only the terminal's bytes. Closing it hangs up the terminal.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ssh", tag = "processes", params(("id" = SandboxId, Path),
    ("rows" = Option<u16>, Query), ("cols" = Option<u16>, Query)),
    responses((status = 101), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn plain_terminal(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    Ok(tunnel(&services, &caller, &id, PlainTerminalSocket::pass_through, request).await?)
}

async fn tunnel<E: Endpoint<Response = Upgrade<WebSocketProtocol>>>(
    services: &Services,
    caller: &Caller,
    id: &SandboxId,
    call: impl FnOnce(&SandboxId, Option<String>) -> PassThrough<E>,
    mut request: Request,
) -> Result<Response> {
    let upgrade = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !upgrade.is_some_and(|name| name.eq_ignore_ascii_case("websocket")) {
        return Err(Error::bad_request("this URL accepts WebSockets only; connect with a WebSocket client"));
    }
    let (place, client) = ops::locate(&services.sandboxes, &caller.workspace, id).await?;
    let call = call(id, agent_query(request.uri().query()));
    let headers = picked(request.headers(), &HANDSHAKE);
    let mut answer = client.pass_through(&call, place.incarnation, headers, Body::empty()).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Error::internal(format!("an agent answered {} to a WebSocket", answer.status())));
    }
    ops::note_wake(&services.sandboxes, &place, id, &client).await;
    let (ours, theirs) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answer));
    let (stop, revoked) = (services.background.shutdown.clone(), Arc::clone(&caller.revoked));
    services.background.tasks.spawn(async move {
        let pass = async {
            let (client, agent) = tokio::try_join!(ours, theirs)?;
            let (mut client, mut agent) = (TokioIo::new(client), TokioIo::new(agent));
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
                tokio::io::copy_bidirectional(&mut client, &mut agent).await?,
            )
        };
        tokio::select! {
            // Ends of all kinds are the clients' business: both sides see their connection close.
            passed = pass => if let Err(error) = passed {
                tracing::debug!(error = %chain(error.as_ref()), "a WebSocket broke");
            },
            () = stop.cancelled() => {}
            () = revoked.cancelled() => {}
        }
    });
    Ok(answer.map(|_| Body::empty()))
}
