//! Previews: visibility of a sandbox's ports, signed URLs, and streams for `pandastack forward`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, header};
use hyper_util::rt::TokioIo;
use pandastack_edge::EdgeError;
use pandastack_edge::limits::SIGNED_URL_SECONDS_MAX;
use pandastack_rest::extract::{parse_json, read_body};
use pandastack_rest::url::beside;
use pandastack_rest::{ApiResult, Caller, Id, Query, switching};
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Amendment, SandboxRecord};
use pandastack_types::agent_api::endpoints::ListPorts;
use pandastack_types::api::{PortList, Preview, Role, SetPreview, SignPreview, SignedPreview};
use pandastack_types::grant::TUNNEL_UPGRADE;
use pandastack_types::link::LinkKey;
use pandastack_types::preview::{PARAMETER, PreviewKey, Visibility};
use pandastack_types::{Error, ErrorBody, SandboxId};
use serde::Deserialize;

use crate::services::Services;

/// Default lifetime of a signed URL.
const SIGNED_SECONDS_DEFAULT: u64 = 3600;
/// Bytes held in each direction of a forwarded connection.
const TUNNEL_BUFFER_BYTES: usize = 16 * 1024;
/// Longest time for a host to list a sandbox's open ports. The host may have to wake the sandbox.
const PORTS_WAIT: std::time::Duration = std::time::Duration::from_secs(60);

fn key(link: &LinkKey, record: &SandboxRecord) -> PreviewKey {
    PreviewKey::new(link, &record.id, record.spec.preview_revision)
}

/// Includes the token only for callers that may change it: the token opens the sandbox.
fn shown(link: &LinkKey, caller: &Caller, record: &SandboxRecord) -> Json<Preview> {
    let visibility = record.spec.visibility;
    let private = visibility == Visibility::Private && caller.role > Role::Viewer;
    let token = private.then(|| key(link, record).token().to_owned());
    Json(Preview { visibility, host_header: record.spec.host_header.clone(), token })
}

/// Get the visibility of a sandbox's ports.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/preview", tag = "previews", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Preview), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Preview>> {
    let record = services.store.sandbox(Some(&caller.workspace), &id).await?;
    Ok(shown(&services.link, &caller, &record))
}

/// Change the visibility of a sandbox's ports.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/preview", tag = "previews", params(("id" = SandboxId, Path)),
    request_body = SetPreview, responses((status = 200, body = Preview), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn set(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Json<Preview>> {
    let wanted: SetPreview = parse_json(&read_body(request.into_body()).await?)?;
    ops::unsealed(&services.sandboxes, &caller.workspace, &id).await?;
    let record = services.sandboxes.amend(&id, &Amendment::Visibility(wanted.visibility)).await?;
    services.edge.forget_route(Some(&id));
    Ok(shown(&services.link, &caller, &record))
}

/// Revoke all preview tokens and signed URLs of a sandbox. Returns a new token.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/preview/revoke", tag = "previews", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Preview), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Preview>> {
    services.store.sandbox(Some(&caller.workspace), &id).await?;
    let record = services.sandboxes.amend(&id, &Amendment::PreviewsRevoked).await?;
    services.edge.forget_route(Some(&id));
    Ok(shown(&services.link, &caller, &record))
}

/// Create a temporary URL for one port of a private sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/preview-token", tag = "previews", params(("id" = SandboxId, Path)),
    request_body = SignPreview, responses((status = 200, body = SignedPreview), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn sign(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Json<SignedPreview>> {
    let (parts, body) = request.into_parts();
    let wanted: SignPreview = parse_json(&read_body(body).await?)?;
    let seconds = wanted.ttl_seconds.unwrap_or(SIGNED_SECONDS_DEFAULT);
    if wanted.port == 0 || seconds == 0 || seconds > SIGNED_URL_SECONDS_MAX {
        return Err(Error::bad_request(format!(
            "`port` must be 1 to 65535 and `ttl_seconds` 1 to {SIGNED_URL_SECONDS_MAX}"
        ))
        .into());
    }
    let record = services.store.sandbox(Some(&caller.workspace), &id).await?;
    let expires_at =
        after_seconds(now(), seconds).ok_or_else(|| Error::bad_request("`ttl_seconds` is too large"))?;
    let token = key(&services.link, &record).sign(wanted.port, expires_at.as_second());
    let url = format!("{}/?{PARAMETER}={token}", preview_url(&parts.headers, &id, wanted.port));
    Ok(Json(SignedPreview { url, token, sandbox_id: id, port: wanted.port, expires_at }))
}

/// List listening ports. A port that accepts outside connections has a URL.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = PortList), (status = 404, body = ErrorBody)))]
pub(crate) async fn ports(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    headers: HeaderMap,
) -> ApiResult<Json<PortList>> {
    let (record, client) = ops::live(&sandboxes, &caller.workspace, &id).await?;
    let call = ListPorts::new(id.clone());
    let mut list = client.call(call, ops::options_for(&record, PORTS_WAIT), ()).await?;
    for port in &mut list.ports {
        let inside = port.address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        port.proxy_url = (!inside).then(|| preview_url(&headers, &id, port.port));
    }
    Ok(Json(list))
}

/// The address of a port as the caller would reach it.
fn preview_url(headers: &HeaderMap, id: &SandboxId, port: u16) -> String {
    beside(headers, &format!("{port}-{id}"))
}

#[derive(Deserialize)]
pub(crate) struct TunnelArg {
    port: u16,
}

/// Open a byte stream to a port, with `Upgrade: pandastack-tunnel`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/tunnel", tag = "previews",
    params(("id" = SandboxId, Path), ("port" = u16, Query)),
    responses((status = 101, description = "Byte stream in both directions"), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 502, description = "No process listens on this port", body = ErrorBody)))]
pub(crate) async fn tunnel(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<TunnelArg>,
    mut request: Request,
) -> ApiResult<Response> {
    let asked = request.headers().get(header::UPGRADE).is_some_and(|asked| asked == TUNNEL_UPGRADE);
    if !asked || arg.port == 0 {
        return Err(Error::bad_request(format!(
            "this request needs `Connection: upgrade`, `Upgrade: {TUNNEL_UPGRADE}` and a port of 1 to 65535"
        ))
        .into());
    }
    ops::unsealed(&services.sandboxes, &caller.workspace, &id).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    let guest =
        services.edge.tunnel(&id, arg.port).await.map_err(|error| api_error(&error, &id, arg.port))?;
    let (stop, revoked) = (services.background.shutdown.clone(), caller.revoked);
    services.background.tasks.spawn(async move {
        let Ok(client) = upgrade.await else { return };
        tokio::select! {
            () = pandastack_edge::copy(TokioIo::new(client), guest, TUNNEL_BUFFER_BYTES) => {}
            () = stop.cancelled() => {}
            () = revoked.cancelled() => {}
        }
    });
    Ok(switching(TUNNEL_UPGRADE))
}

fn api_error(error: &EdgeError, id: &SandboxId, port: u16) -> Error {
    Error::new(error.code(), error.sentence(id, port))
}
