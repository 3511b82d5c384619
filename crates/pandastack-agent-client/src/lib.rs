//! A client of a host's agent, over a Unix socket, TCP, or mutual TLS.
//!
//! Calls are described by [`pandastack_types::agent_api::endpoints`]: [`AgentClient::call`] for
//! calls that return a value, [`AgentClient::stream`] for calls that return bytes or events,
//! [`AgentClient::upgrade`] for calls that turn the connection into a bidirectional stream, and
//! [`AgentClient::pass_through`] for a client's request that is forwarded.
//!
//! Every request goes over a pooled connection that is kept alive, so a call costs no connection setup. Over
//! TLS both sides know each other by their certificates; elsewhere, requests are signed with the join secret.
//! Nothing is ever sent twice: the pool repeats a request only if not a byte of it was written. Dropping the
//! returned future or response body closes the connection, which is how the agent learns that a client went
//! away.

#![forbid(unsafe_code)]

mod body;
mod connector;
mod error;
mod failure;
pub mod request_id;
#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use pandastack_fleet::Dialer;
use pandastack_types::agent_api::{
    Empty, Endpoint, INCARNATION_HEADER, JsonResponse, LAST_EVENT_ID_HEADER, PassThrough, Protocol,
    StreamResponse, Upgrade,
};
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{ErrorBody, HostId};

pub use crate::body::RequestBody;
use crate::connector::{Address, Connector};
pub use crate::error::AgentError;
use crate::error::Cause;
use crate::request_id::REQUEST_ID;

/// Idle connections kept to one agent.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Largest JSON answer of an agent to control itself: a command with both streams full and every byte
/// escaped. Responses that pass through to clients have no such limit.
const ANSWER_BYTES_MAX: usize = 12 * pandastack_types::limits::OWN_OUTPUT_BYTES_MAX + 64 * 1024;
/// Largest error body read from an agent.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// What this process has to call agents: the join secret, a certificate, or both.
#[derive(Clone)]
pub struct AgentLink {
    secret: Option<LinkKey>,
    dialer: Option<Dialer>,
}

impl AgentLink {
    /// Calls agents with a certificate over TLS, and others with the secret.
    pub fn new(secret: Option<LinkKey>, dialer: Option<Dialer>) -> Self {
        Self { secret, dialer }
    }
}

impl From<LinkKey> for AgentLink {
    fn from(secret: LinkKey) -> Self {
        Self { secret: Some(secret), dialer: None }
    }
}

/// A client of one agent. Clones share the connections.
#[derive(Clone)]
pub struct AgentClient {
    host: HostId,
    /// Signs requests; `None` over TLS.
    key: Option<LinkKey>,
    http: Client<Connector, Body>,
    local: bool,
}

/// Options of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOptions {
    /// Incarnation of the sandbox that is meant; the agent refuses a stale one.
    pub incarnation: Option<u64>,
    /// Longest time for the response; no limit if `None`.
    pub wait: Option<Duration>,
}

impl CallOptions {
    /// A call on a host.
    pub fn on_host(wait: Duration) -> Self {
        Self { incarnation: None, wait: Some(wait) }
    }

    /// A call on a sandbox.
    pub fn on_sandbox(incarnation: u64, wait: Duration) -> Self {
        Self { incarnation: Some(incarnation), wait: Some(wait) }
    }

    /// An upload to a sandbox, which takes as long as its source does.
    pub fn upload(incarnation: u64) -> Self {
        Self { incarnation: Some(incarnation), wait: None }
    }
}

/// Options of a streamed response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions<'a> {
    /// Incarnation of the sandbox that is meant; the agent refuses a stale one.
    pub incarnation: Option<u64>,
    /// Continue after this event.
    pub last_event_id: Option<&'a str>,
}

impl StreamOptions<'_> {
    /// A stream of a sandbox, from its beginning.
    pub fn on_sandbox(incarnation: u64) -> Self {
        Self { incarnation: Some(incarnation), last_event_id: None }
    }
}

/// The request body of a call.
pub type RequestOf<'a, E> = <<E as Endpoint>::Request as RequestBody>::Value<'a>;
/// The response of a call.
pub type ResponseOf<E> = <<E as Endpoint>::Response as JsonResponse>::Value;

impl AgentClient {
    /// A client of the agent at an address of the form that agents report. Connects when first used.
    pub fn new(host: HostId, address: &str, link: impl Into<AgentLink>) -> Result<Self, AgentError> {
        let AgentLink { secret, dialer } = link.into();
        let wrong =
            || AgentError::Address { host: host.clone(), address: address.chars().take(200).collect() };
        let unusable = |source: Cause| AgentError::Unreachable { host: host.clone(), source: Some(source) };
        let secret =
            || secret.ok_or_else(|| unusable("it has no certificate; join it to this installation".into()));
        let (connector, key) = match Address::parse(address).ok_or_else(wrong)? {
            Address::Unix(path) => (Connector::Unix(path), Some(secret()?)),
            Address::Tcp(authority) => (Connector::Tcp(authority), Some(secret()?)),
            Address::Tls(authority) => {
                let dialer = dialer.ok_or_else(|| unusable("this process has no certificate".into()))?;
                let dialer = dialer.to(&host).map_err(|error| unusable(error.into()))?;
                (Connector::Tls(authority, dialer), None)
            }
        };
        let local = matches!(connector, Connector::Unix(_));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Ok(Self { host, key, http, local })
    }

    /// Returns whether the agent is on this machine, so that its guests' addresses are reachable
    /// from here.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The host that is called.
    pub fn host(&self) -> &HostId {
        &self.host
    }

    /// Makes a call and reads its value.
    pub async fn call<E>(
        &self,
        endpoint: E,
        options: CallOptions,
        body: RequestOf<'_, E>,
    ) -> Result<ResponseOf<E>, AgentError>
    where
        E: Endpoint,
        E::Request: RequestBody,
        E::Response: JsonResponse,
    {
        let request = self.request(&endpoint, body)?;
        let received = self.within(options.wait, self.receive(request, options.incarnation)).await?;
        E::Response::parse(&received).map_err(|error| self.bad_response(error))
    }

    /// Makes a call whose response body is streamed.
    pub async fn stream<E>(
        &self,
        endpoint: E,
        options: StreamOptions<'_>,
        body: RequestOf<'_, E>,
    ) -> Result<Response<Incoming>, AgentError>
    where
        E: Endpoint,
        E::Request: RequestBody,
        E::Response: StreamResponse,
    {
        let mut request = self.request(&endpoint, body)?;
        if let Some(id) = options.last_event_id {
            let id = HeaderValue::from_str(id).map_err(|error| self.invalid_request(error))?;
            request.headers_mut().insert(LAST_EVENT_ID_HEADER, id);
        }
        self.send(request, options.incarnation).await
    }

    /// Makes a call that turns the connection into a stream. Returns the response's headers and the stream.
    pub async fn upgrade<E, P>(
        &self,
        endpoint: E,
        options: CallOptions,
    ) -> Result<(HeaderMap, TokioIo<Upgraded>), AgentError>
    where
        E: Endpoint<Request = Empty, Response = Upgrade<P>>,
        P: Protocol,
    {
        let request = self.request(&endpoint, ())?;
        self.within(options.wait, self.switch(request, options.incarnation, P::NAME)).await
    }

    /// Forwards a client's request: `headers` and `body` are the client's.
    pub async fn pass_through<E: Endpoint>(
        &self,
        call: &PassThrough<E>,
        incarnation: u64,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response<Incoming>, AgentError> {
        let request = Request::builder().method(E::METHOD.as_str()).uri(call.target()).body(body);
        let mut request = request.map_err(|error| self.invalid_request(error))?;
        *request.headers_mut() = headers;
        self.send(request, Some(incarnation)).await
    }

    /// Sends a request whose URI is a path with query, streaming both ways. An error status becomes an error.
    async fn send(
        &self,
        mut request: Request<Body>,
        incarnation: Option<u64>,
    ) -> Result<Response<Incoming>, AgentError> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
        // One client has one address, so the authority only has to be constant for the pool to work.
        *request.uri_mut() =
            format!("http://agent{target}").parse::<Uri>().map_err(|error| self.invalid_request(error))?;
        if let Some(key) = &self.key {
            let now = Timestamp::now().as_second();
            let signature =
                key.sign(Direction::ControlToAgent, &self.host, request.method().as_str(), &target, now);
            let signature = HeaderValue::from_str(&signature).map_err(|error| self.invalid_request(error))?;
            request.headers_mut().insert(LINK_HEADER, signature);
        }
        if let Some(id) = request_id::current() {
            request.headers_mut().insert(REQUEST_ID, id);
        }
        if let Some(incarnation) = incarnation {
            request.headers_mut().insert(INCARNATION_HEADER, HeaderValue::from(incarnation));
        }
        let response = self.http.request(request).await.map_err(|error| self.failed(error))?;
        if response.status().as_u16() >= 400 {
            return Err(self.refusal(response).await);
        }
        Ok(response)
    }

    fn request<E>(&self, endpoint: &E, body: RequestOf<'_, E>) -> Result<Request<Body>, AgentError>
    where
        E: Endpoint,
        E::Request: RequestBody,
    {
        let body = E::Request::body(body).map_err(|error| self.invalid_request(error))?;
        let mut request = Request::builder().method(E::METHOD.as_str()).uri(endpoint.target());
        if let Some(media_type) = E::Request::MEDIA_TYPE {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        request.body(body).map_err(|error| self.invalid_request(error))
    }

    async fn receive(&self, request: Request<Body>, incarnation: Option<u64>) -> Result<Bytes, AgentError> {
        let response = self.send(request, incarnation).await?;
        let received = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        received.map(|received| received.to_bytes()).map_err(|source| self.connection_lost(source))
    }

    async fn switch(
        &self,
        mut request: Request<Body>,
        incarnation: Option<u64>,
        protocol: &'static str,
    ) -> Result<(HeaderMap, TokioIo<Upgraded>), AgentError> {
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
        let mut response = self.send(request, incarnation).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.bad_response(format!("status {} to `{protocol}`", response.status())));
        }
        let headers = std::mem::take(response.headers_mut());
        let stream = hyper::upgrade::on(response).await;
        let stream = stream.map_err(|error| self.connection_lost(error))?;
        Ok((headers, TokioIo::new(stream)))
    }

    async fn within<T>(
        &self,
        wait: Option<Duration>,
        call: impl Future<Output = Result<T, AgentError>>,
    ) -> Result<T, AgentError> {
        let Some(wait) = wait else { return call.await };
        let timeout = |_| AgentError::Timeout { host: self.host.clone(), wait };
        tokio::time::timeout(wait, call).await.map_err(timeout)?
    }

    fn failed(&self, error: hyper_util::client::legacy::Error) -> AgentError {
        if error.is_connect() {
            return AgentError::Unreachable { host: self.host.clone(), source: Some(error.into()) };
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if inner.is::<LengthLimitError>() {
                return AgentError::BodyTooLarge;
            }
            cause = inner.source();
        }
        self.connection_lost(error)
    }

    fn connection_lost(&self, source: impl Into<Cause>) -> AgentError {
        AgentError::ConnectionLost { host: self.host.clone(), source: source.into() }
    }

    fn invalid_request(&self, source: impl Into<Cause>) -> AgentError {
        AgentError::InvalidRequest { host: self.host.clone(), source: source.into() }
    }

    fn bad_response(&self, source: impl Into<Cause>) -> AgentError {
        AgentError::BadResponse { host: self.host.clone(), source: source.into() }
    }

    async fn refusal(&self, response: Response<Incoming>) -> AgentError {
        let status = response.status().as_u16();
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = match Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(source) => return self.connection_lost(source),
        };
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => {
                let retry_after = retry_after.or(body.code.retry_after_seconds());
                AgentError::Answered { status, body: Box::new(body), retry_after }
            }
            Err(error) => {
                let shown = String::from_utf8_lossy(&bytes).chars().take(200).collect::<String>();
                self.bad_response(format!("status {status}, body `{shown}`: {error}"))
            }
        }
    }
}
