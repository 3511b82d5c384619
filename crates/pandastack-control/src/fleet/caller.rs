//! Who sent a request to the private API.
//!
//! | connection | proof |
//! |---|---|
//! | mutual TLS | the certificate. A follower passes it on, signed with the join secret |
//! | socket on this machine | a signature with the join secret |
//! | TCP without TLS | the same, while the shared secret is accepted |

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Extensions;
use http::request::Parts;
use pandastack_fleet::Peer;
use pandastack_rest::ApiError;
use pandastack_store::host_identities::SharedSecret;
use pandastack_types::host_identity::HostRole;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{Error, ErrorCode, HostId, Result};

use super::Fleet;
use super::audit;
use crate::link_caller::LinkCaller;
use crate::replicas::passed_on_host;
use crate::services::Services;

pub(super) fn unauthorized(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Unauthorized, message.into())
}

/// The connection of a request to the private API; none for requests to other listeners.
pub(crate) fn peer(extensions: &Extensions) -> Option<&Peer> {
    extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer)
}

/// Layer: finds out who sent a request, or refuses it.
pub(crate) async fn identified(
    State(services): State<Arc<Services>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match sender(&services.fleet, &services.link, &parts) {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => {
            let response = ApiError(error).into_response();
            audit::refused(&services, &parts, "", response.status()).await;
            response
        }
    }
}

fn sender(fleet: &Fleet, link: &LinkKey, parts: &Parts) -> Result<LinkCaller> {
    match peer(&parts.extensions) {
        Some(Peer::Member(_, member)) if member.role != HostRole::Control => {
            Ok(LinkCaller::Member(member.clone()))
        }
        // A local process, or another control server.
        Some(Peer::Member(..) | Peer::Local) => match passed_on_host(link, parts) {
            Some(member) if fleet.memberships.is_member(&member) => Ok(LinkCaller::Member(member)),
            Some(member) => Err(unauthorized(format!("host `{}` was removed", member.host))),
            None => with_secret(fleet, link, parts),
        },
        Some(Peer::Plain(_)) if fleet.shared_secret() == SharedSecret::Refused => Err(unauthorized(
            "this installation does not accept the shared join secret over TCP; join the host with \
             `pandastack host token`",
        )),
        Some(Peer::Plain(_)) => with_secret(fleet, link, parts),
        Some(Peer::Stranger(_)) => Err(unauthorized(
            "this request needs the certificate of a host; join the host with `pandastack host token`",
        )),
        None => Err(unauthorized("this listener does not serve hosts")),
    }
}

/// The host that signed a request with the join secret.
pub(super) fn signer(link: &LinkKey, parts: &Parts) -> Result<HostId> {
    let header = parts.headers.get(LINK_HEADER).and_then(|value| value.to_str().ok());
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let (method, at) = (parts.method.as_str(), jiff::Timestamp::now().as_second());
    let host = link.verify(Direction::AgentToControl, header, method, path, at);
    host.map_err(|refused| unauthorized(refused.to_string()))
}

fn with_secret(fleet: &Fleet, link: &LinkKey, parts: &Parts) -> Result<LinkCaller> {
    let host = signer(link, parts)?;
    match fleet.has_joined(&host) {
        false => Ok(LinkCaller::Secret(host)),
        true => Err(unauthorized(format!(
            "host `{host}` joined with a certificate, so the join secret is not accepted for it"
        ))),
    }
}
