//! Hosts join and renew their certificates.
//!
//! Must hold: the token is checked before the body is read; a token is used at most once, also by two hosts
//! at the same time, because the store decides.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http_body_util::{BodyExt, Limited};
use pandastack_fleet::{JoinToken, Peer, SigningRequest};
use pandastack_rest::{ApiError, ApiResult};
use pandastack_store::clock::now;
use pandastack_store::host_identities::{HostTokenRecord, SharedSecret};
use pandastack_types::agent_api::{CertificateRequest, IssuedCertificate, JoinRequest};
use pandastack_types::api::HostLink;
use pandastack_types::host_identity::HostRole;
use pandastack_types::link::LINK_HEADER;
use pandastack_types::{Error, ErrorCode, HostId, Result};
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq;

use super::audit;
use super::caller::{peer, unauthorized};
use crate::link_caller::LinkCaller;
use crate::services::Services;

/// Largest body of a host that joins.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// Longest time for it to arrive.
const BODY_WAIT: Duration = Duration::from_secs(10);

/// A host joins with a token, or with the join secret while the installation migrates.
pub(crate) async fn join(State(services): State<Arc<Services>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let presented = presented(&parts).unwrap_or_default();
    let id = JoinToken::id_of(presented).unwrap_or("unknown");
    match joined(&services, &parts, presented, body).await {
        Ok((host, issued)) => {
            audit::put(&services, &parts, (id, &format!("host {host}")), StatusCode::OK).await;
            Json(issued).into_response()
        }
        Err(error) => {
            let response = ApiError(error).into_response();
            audit::refused(&services, &parts, id, response.status()).await;
            response
        }
    }
}

fn presented(parts: &Parts) -> Option<&str> {
    let (kind, secret) = parts.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    kind.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn address(parts: &Parts) -> Result<IpAddr> {
    match peer(&parts.extensions) {
        Some(Peer::Stranger(address) | Peer::Member(address, _)) => Ok(address.ip()),
        _ => Err(Error::bad_request("a host joins over TLS; use the https:// address of --agents-listen")),
    }
}

async fn joined(
    services: &Arc<Services>,
    parts: &Parts,
    presented: &str,
    body: Body,
) -> Result<(HostId, IssuedCertificate)> {
    let address = address(parts)?;
    services.keys.admit_stranger(Some(address))?;
    let checked = match parts.headers.contains_key(LINK_HEADER) {
        true => check_secret(services, parts).map(Proof::Secret),
        false => check_token(services, presented).await.map(Proof::Token),
    };
    let proof = checked.inspect_err(|_| services.keys.count_invalid_key(Some(address)))?;
    let request: JoinRequest = read(body).await?;
    proof.check(&request)?;
    let signing = signing_request(&request.request)?;
    let end = services.fleet.certificate_end();
    let owned = Arc::clone(services);
    // Continues if the host disconnects: the token is used then.
    services
        .background
        .owned(async move {
            let (host, at) = (&request.host, now());
            let record = match proof {
                Proof::Token(token) => owned.store.join_host(&token.id, host, at, end).await?,
                Proof::Secret(_) => owned.store.migrate_host(request.role, host, at, end).await?,
            };
            let member = record.identity.clone();
            owned.fleet.apply(record);
            if member.role == HostRole::Edge {
                owned.fleet.announce_edges(&owned.hosts).await;
            }
            tracing::info!(host = %member.host, role = %member.role, "a host joined");
            Ok((member.host.clone(), owned.fleet.issue(&signing, &member)?))
        })
        .await
}

/// What entitles a host to join.
enum Proof {
    Token(HostTokenRecord),
    /// The join secret, for the host that signed.
    Secret(HostId),
}

impl Proof {
    fn check(&self, request: &JoinRequest) -> Result<()> {
        let message = match self {
            Proof::Token(token) if token.role != request.role => {
                format!("the join token is for an {}, not for an {}", token.role, request.role)
            }
            Proof::Secret(host) if *host != request.host || request.role != HostRole::Agent => {
                format!("host `{host}` cannot join as the {} `{}`", request.role, request.host)
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorCode::Forbidden, message))
    }
}

/// The host that signed with the join secret. It must be one that reports with that over TCP.
fn check_secret(services: &Services, parts: &Parts) -> Result<HostId> {
    let host = super::caller::signer(&services.link, parts)?;
    if services.fleet.shared_secret() != SharedSecret::Migrating {
        return Err(unauthorized("the join secret is not accepted; use a token of `pandastack host token`"));
    }
    let address = services.hosts.address(&host).unwrap_or_default();
    match HostLink::of(&address) {
        HostLink::SharedSecret if !address.is_empty() => Ok(host),
        _ => Err(unauthorized(format!("host `{host}` does not report with the join secret"))),
    }
}

async fn check_token(services: &Services, presented: &str) -> Result<HostTokenRecord> {
    let unknown = || unauthorized("the join token is not valid; make another with `pandastack host token`");
    let id = JoinToken::id_of(presented).ok_or_else(unknown)?;
    let token = services.store.host_token(id).await?.ok_or_else(unknown)?;
    if !bool::from(token.hash.as_slice().ct_eq(&JoinToken::hash_of(presented))) {
        return Err(unknown());
    }
    // Only a holder of the secret learns this.
    match (&token.used_at, &token.used_by) {
        (None, _) if now() < token.expires_at => Ok(token),
        (None, _) => Err(unauthorized(format!(
            "the join token expired at {}; make another with `pandastack host token`",
            token.expires_at
        ))),
        (Some(at), by) => Err(unauthorized(format!(
            "the join token was used at {at} by host `{}`; make another with `pandastack host token`",
            by.as_ref().map_or("?", HostId::as_str)
        ))),
    }
}

fn signing_request(text: &str) -> Result<SigningRequest> {
    SigningRequest::parse(text).map_err(|error| Error::bad_request(error.to_string()))
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T> {
    let late = |_| Error::new(ErrorCode::RequestTimeout, "the request body did not arrive in time");
    let read = tokio::time::timeout(BODY_WAIT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let bytes =
        read.map_err(late)?.map_err(|error| Error::bad_request(format!("cannot read the body: {error}")))?;
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        Error::bad_request(format!("the request is invalid ({error}); run the same version on both sides"))
    })
}

/// A member renews its certificate.
pub(crate) async fn renew(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Json<IssuedCertificate>> {
    let (parts, body) = request.into_parts();
    let LinkCaller::Member(member) = LinkCaller::of(&parts.extensions)? else {
        return Err(unauthorized("only a host with a certificate can renew it").into());
    };
    let request: CertificateRequest = read(body).await?;
    let signing = signing_request(&request.request)?;
    services.store.renew_host(member, services.fleet.certificate_end()).await?;
    Ok(Json(services.fleet.issue(&signing, member)?))
}
