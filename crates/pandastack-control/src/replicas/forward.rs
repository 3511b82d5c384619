//! Forwards requests to the leader.
//!
//! A request is forwarded unchanged, with its key, and the leader checks it: this module only
//! decides where it goes. Bodies stream both ways. The client's address goes with it, signed with
//! the link: a key's networks and the limit of failed attempts depend on it, and the internal
//! listener is open to more than replicas. A request is forwarded once; a replica that gets it
//! without leading refuses it, and the client retries.

use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use pandastack_fleet::HostTls;
use pandastack_rest::ApiError;
use pandastack_store::replicas::Replica;
use pandastack_types::agent_api::internal;
use pandastack_types::host_identity::HostIdentity;
use pandastack_types::link::{Direction, LinkKey};
use pandastack_types::{Error, ErrorCode, HostId, Result};

use super::{Member, Replicas};
use crate::link_caller::LinkCaller;

/// Resources that every replica serves itself, below `/v1`. The leader serves all others, so that a
/// new service that is missing here still works.
const OWN: [&str; 6] = ["sandboxes", "snapshots", "run", "me", "usage", "audit"];
/// Time for which the leader's address is cached.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Longest time to connect to the leader.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Marks a request that was already forwarded.
const PASSED_ON: HeaderName = HeaderName::from_static("x-pandastack-passed-on");
/// The client's address.
const PASSED_ON_FOR: HeaderName = HeaderName::from_static("x-pandastack-passed-on-for");
/// Proves that a replica set the headers above. Not the link's own header: a forwarded report
/// already has its host's.
const PASSED_ON_PROOF: HeaderName = HeaderName::from_static("x-pandastack-passed-on-proof");

/// The host with a certificate that sent a request to another replica, and the proof.
const PASSED_ON_HOST: HeaderName = HeaderName::from_static("x-pandastack-passed-on-host");
const PASSED_ON_HOST_PROOF: HeaderName = HeaderName::from_static("x-pandastack-passed-on-host-proof");

/// Client address of a request that another replica passed on. Extension of the request; nothing
/// from the network sets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardedFor(pub(crate) IpAddr);
/// Headers that belong to a connection.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
];

/// The address of the leader.
#[derive(Clone)]
pub(super) struct Leader {
    replica: Replica,
    http: reqwest::Client,
    base: String,
    since: Instant,
}

/// Layer: forwards the leader's requests to the leader.
pub(crate) async fn to_leader(State(member): State<Member>, request: Request, next: Next) -> Response {
    if member.replicas.leads() || !is_leaders(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    match pass_on(&member, request).await {
        Ok(response) => response,
        Err(error) => ApiError(error).into_response(),
    }
}

/// Layer of the internal listeners: believes the address of a client only if the link's secret signed it.
pub(crate) async fn from_replica(State(link): State<LinkKey>, mut request: Request, next: Next) -> Response {
    let address = proven_address(&link, &request, Timestamp::now().as_second());
    request.headers_mut().remove(PASSED_ON_FOR);
    request.headers_mut().remove(PASSED_ON_PROOF);
    if let Some(address) = address {
        request.extensions_mut().insert(ForwardedFor(address));
    }
    next.run(request).await
}

fn proven_address(link: &LinkKey, request: &Request, at: i64) -> Option<IpAddr> {
    let text = |name: &HeaderName| request.headers().get(name)?.to_str().ok();
    let address: IpAddr = text(&PASSED_ON_FOR)?.parse().ok()?;
    let signed = signed_path(request.uri(), address);
    let proof = text(&PASSED_ON_PROOF);
    let proven = link.verify(Direction::AgentToControl, proof, request.method().as_str(), &signed, at);
    proven.is_ok().then_some(address)
}

/// The text that the proof signs in place of a path. No path has a space.
fn signed_path(uri: &http::Uri, address: IpAddr) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{path} for {address}")
}

/// The host that sent a request to another replica, which checked its certificate.
pub(crate) fn passed_on_host(link: &LinkKey, parts: &Parts) -> Option<HostIdentity> {
    let text = |name: &HeaderName| parts.headers.get(name)?.to_str().ok();
    let identity = text(&PASSED_ON_HOST)?;
    let (signed, at) = (signed_sender(&parts.uri, identity), Timestamp::now().as_second());
    let proof = text(&PASSED_ON_HOST_PROOF);
    let proven = link.verify(Direction::AgentToControl, proof, parts.method.as_str(), &signed, at);
    proven.ok().and_then(|_| identity.parse().ok())
}

/// The text that this proof signs.
fn signed_sender(uri: &http::Uri, identity: &str) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{path} by {identity}")
}

fn is_leaders(uri: &http::Uri, headers: &HeaderMap) -> bool {
    let path = uri.path();
    if let Some(below) = path.strip_prefix("/v1/") {
        return !OWN.contains(&below.split('/').next().unwrap_or_default());
    }
    path.starts_with(internal::HOSTS) || pandastack_functions::is_named(headers, uri)
}

async fn pass_on(member: &Member, request: Request) -> Result<Response> {
    if request.headers().contains_key(PASSED_ON) {
        return Err(no_leader());
    }
    let leader = leader(member).await?;
    let (mut parts, body) = request.into_parts();
    for name in &HOP_BY_HOP {
        parts.headers.remove(name);
    }
    let me = HeaderValue::from_str(&member.replicas.instance);
    parts.headers.insert(PASSED_ON, me.unwrap_or_else(|_| HeaderValue::from_static("replica")));
    parts.headers.remove(PASSED_ON_FOR);
    parts.headers.remove(PASSED_ON_PROOF);
    if let Some(client) = parts.extensions.get::<pandastack_edge::Client>() {
        let (address, at) = (client.address, Timestamp::now().as_second());
        let me: HostId = member.replicas.instance.parse().map_err(Error::internal)?;
        let (link, signed) = (&member.link, signed_path(&parts.uri, address));
        let proof = link.sign(Direction::AgentToControl, &me, parts.method.as_str(), &signed, at);
        let value = |text: &str| HeaderValue::from_str(text).map_err(Error::internal);
        parts.headers.insert(PASSED_ON_FOR, value(&address.to_string())?);
        parts.headers.insert(PASSED_ON_PROOF, value(&proof)?);
    }
    if let Some(LinkCaller::Member(host)) = parts.extensions.get() {
        let (host, at) = (host.to_string(), Timestamp::now().as_second());
        let me: HostId = member.replicas.instance.parse().map_err(Error::internal)?;
        let signed = signed_sender(&parts.uri, &host);
        let proof = member.link.sign(Direction::AgentToControl, &me, parts.method.as_str(), &signed, at);
        let value = |text: &str| HeaderValue::from_str(text).map_err(Error::internal);
        parts.headers.insert(PASSED_ON_HOST, value(&host)?);
        parts.headers.insert(PASSED_ON_HOST_PROOF, value(&proof)?);
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let sent = leader
        .http
        .request(parts.method, format!("{}{path}", leader.base))
        .headers(parts.headers)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send()
        .await;
    let answer = sent.map_err(|error| {
        member.replicas.forget_leader();
        let what = format!(
            "the leader, replica `{}`, is not responding; try again shortly",
            leader.replica.instance
        );
        Error { cause: Some(error.into()), ..Error::new(ErrorCode::Unavailable, what) }
    })?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    for name in &HOP_BY_HOP {
        response.headers_mut().remove(name);
    }
    *response.body_mut() = Body::from_stream(answer.bytes_stream());
    Ok(response)
}

fn no_leader() -> Error {
    Error::new(ErrorCode::Unavailable, "the control servers have no leader; try again in a few seconds")
}

async fn leader(member: &Member) -> Result<Leader> {
    if let Some(known) = member.replicas.remembered_leader() {
        return Ok(known);
    }
    let replicas = member.store.replicas().await?;
    let found =
        replicas.into_iter().find(|replica| replica.leads && replica.instance != member.replicas.instance);
    let found = found.ok_or_else(no_leader)?;
    member.replicas.remember_leader(found)
}

/// A client for another replica, with the prefix of its paths.
pub(super) fn client_for(address: &str, tls: &HostTls) -> Result<(reqwest::Client, String)> {
    let builder = match address.starts_with("https://") {
        true => reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .tls_backend_preconfigured(tls.to_control().map_err(Error::internal)?),
        false => pandastack_http::builder_for(address),
    };
    let builder =
        builder.connect_timeout(CONNECT_MAX).redirect(reqwest::redirect::Policy::none()).tcp_nodelay(true);
    let (builder, base) = match address.strip_prefix("unix:") {
        Some(path) => (builder.unix_socket(path), "http://control".to_owned()),
        None => (builder, address.trim_end_matches('/').to_owned()),
    };
    Ok((builder.build().map_err(Error::internal)?, base))
}

impl Replicas {
    fn remembered_leader(&self) -> Option<Leader> {
        let known = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone().filter(|leader| leader.since.elapsed() < REMEMBERED)
    }

    /// Keeps existing connections if the leader did not change.
    fn remember_leader(&self, found: Replica) -> Result<Leader> {
        let mut known = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        let leader = match known.take().filter(|known| known.replica == found) {
            Some(same) => Leader { since: Instant::now(), ..same },
            None => {
                let (http, base) = client_for(&found.address, &self.tls)?;
                Leader { replica: found, http, base, since: Instant::now() }
            }
        };
        *known = Some(leader.clone());
        Ok(leader)
    }

    fn forget_leader(&self) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &'static str, host: &'static str, expect: bool) {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
        assert_eq!(is_leaders(&http::Uri::from_static(path), &headers), expect, "{host}{path}");
    }

    #[test]
    fn only_service_calls_and_reports_are_forwarded_to_the_leader() {
        for path in ["/v1/sandboxes", "/v1/sandboxes/a/exec", "/v1/run", "/v1/me/tokens", "/healthz", "/sql"]
        {
            check(path, "localhost", false);
        }
        for path in ["/v1/apps", "/v1/functions/a", "/v1/hosts", "/v1/hooks/apps/a", "/v1/of-tomorrow"] {
            check(path, "localhost", true);
        }
        check("/internal/v1/hosts/a/report", "control", true);
        check("/internal/v1/routes", "control", false);
        check("/any", "fn-0b8e1f0e-6a4b-4b57-9d0a-0d7cbb5b3c11.example.com", true);
        check("/any", "8080-0b8e1f0e.example.com", false);
    }

    #[test]
    fn only_a_link_signature_proves_a_client_address() {
        let (link, other) = (LinkKey::new(&[7; 32]).unwrap(), LinkKey::new(&[8; 32]).unwrap());
        let (me, address): (HostId, IpAddr) = ("replica-a".parse().unwrap(), [192, 0, 2, 7].into());
        let uri = http::Uri::from_static("/v1/apps?a=b");
        let proof = |link: &LinkKey, method: &str, address| {
            link.sign(Direction::AgentToControl, &me, method, &signed_path(&uri, address), 1_000)
        };
        let request = |proof: Option<String>| {
            let request = Request::get(uri.clone()).header(PASSED_ON_FOR, address.to_string());
            let request = proof.iter().fold(request, |request, proof| request.header(PASSED_ON_PROOF, proof));
            request.body(Body::empty()).unwrap()
        };
        assert_eq!(proven_address(&link, &request(Some(proof(&link, "GET", address))), 1_001), Some(address));
        for (what, wrong) in [
            ("unsigned", None),
            ("another secret", Some(proof(&other, "GET", address))),
            ("another address", Some(proof(&link, "GET", [192, 0, 2, 8].into()))),
            ("another method", Some(proof(&link, "POST", address))),
            ("the path alone", Some(link.sign(Direction::AgentToControl, &me, "GET", "/v1/apps?a=b", 1_000))),
        ] {
            assert_eq!(proven_address(&link, &request(wrong), 1_001), None, "{what}");
        }
        assert_eq!(proven_address(&link, &request(Some(proof(&link, "GET", address))), 2_000), None, "old");
    }
}
