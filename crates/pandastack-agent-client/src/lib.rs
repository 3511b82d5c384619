//! Calls to one host's agent, over a unix socket or TCP by one mechanism.
//!
//! Every request is signed and goes over a pooled connection that is kept alive, so a call costs no connection setup.
//! Nothing is ever sent twice: the pool repeats a request only if not a byte of it was written. Dropping the returned
//! future or response body closes the connection, which is how the agent learns that a client went away.
//! [`AgentClient::upgrade`] turns a call into a plain stream of bytes.

#![forbid(unsafe_code)]

mod failure;
pub mod request_id;

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use pandastack_types::agent_api::INCARNATION_HEADER;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{ErrorBody, HostId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::request_id::REQUEST_ID;

/// How long connecting to an agent may take.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Idle connections kept to one agent.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Largest JSON answer of an agent to control itself: a `run` with both streams full and every byte escaped. What
/// passes through to clients has no such limit.
const ANSWER_BYTES_MAX: usize = 12 * pandastack_types::limits::EXEC_OUTPUT_BYTES_MAX + 64 * 1024;
/// Largest error body read from an agent.
const ERROR_BYTES_MAX: usize = 64 * 1024;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call to an agent did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nothing was sent.
    #[error("host `{host}` does not answer; its sandboxes keep running and come back with it")]
    Unreachable {
        /// Which.
        host: HostId,
        /// Why.
        #[source]
        source: Option<Cause>,
    },
    /// It was sent, and no answer came.
    #[error("host `{host}` broke off the call; whether it took effect is not known")]
    Broken {
        /// Which.
        host: HostId,
        /// Why.
        #[source]
        source: Cause,
    },
    /// It was sent, and no answer came in time.
    #[error("host `{host}` did not finish within {} s", .wait.as_secs())]
    Late {
        /// Which.
        host: HostId,
        /// How long it had.
        wait: Duration,
    },
    /// The answer is not what was asked for.
    #[error(
        "host `{host}` answered something that this server does not understand; do their versions match?"
    )]
    Nonsense {
        /// Which.
        host: HostId,
        /// What is wrong with it.
        #[source]
        source: Cause,
    },
    /// The agent refused or failed, and says why.
    #[error("{}", .body.error)]
    Answered {
        /// Status of the answer.
        status: u16,
        /// What it says.
        body: Box<ErrorBody>,
        /// When to try again.
        retry_after: Option<u32>,
    },
    /// The client's body is longer than allowed.
    #[error("the body is larger than {} bytes", pandastack_types::limits::FILE_BODY_BYTES_MAX)]
    BodyTooLarge,
    /// The host reported an address that is not one.
    #[error("host `{host}` reported the address `{address}`; expected unix:/path or http://address:port")]
    Address {
        /// Which.
        host: HostId,
        /// What it reported.
        address: String,
    },
}

impl AgentError {
    /// Whether the agent says that it has no such thing.
    pub fn is_absent(&self) -> bool {
        matches!(self, AgentError::Answered { status: 404, .. })
    }
}

/// A client of one agent. Clones share the connections.
#[derive(Clone)]
pub struct AgentClient {
    host: HostId,
    key: LinkKey,
    http: Client<Connector, Body>,
    local: bool,
}

/// A call that answers JSON.
pub struct Call<'a> {
    /// Its method.
    pub method: Method,
    /// Under `/agent/v1`.
    pub path: &'a str,
    /// The life of the sandbox that is meant.
    pub incarnation: Option<u64>,
    /// How long the answer may take.
    pub wait: Duration,
}

impl AgentClient {
    /// A client of the agent at an address of the form that agents report. Connects when first used.
    pub fn new(host: HostId, address: &str, key: LinkKey) -> Result<Self, AgentError> {
        let Some(connector) = Connector::parse(address) else {
            return Err(AgentError::Address { host, address: address.chars().take(200).collect() });
        };
        let local = matches!(connector, Connector::Unix(_));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Ok(Self { host, key, http, local })
    }

    /// Whether the agent is on this machine, so that its guests' addresses are reachable from here.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The host that is called.
    pub fn host(&self) -> &HostId {
        &self.host
    }

    /// Sends JSON and reads JSON; an empty answer reads as `null`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        call: Call<'_>,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, AgentError> {
        let nonsense = |source: Cause| AgentError::Nonsense { host: self.host.clone(), source };
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| nonsense(error.into()))?,
            None => Vec::new(),
        };
        let mut request = Request::builder().method(call.method).uri(format!("/agent/v1{}", call.path));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(bytes)).map_err(|error| nonsense(error.into()))?;
        let answer = async {
            let response = self.send(request, call.incarnation).await?;
            let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            bytes.map(|collected| collected.to_bytes()).map_err(|source| self.broken(source))
        };
        let late = |_| AgentError::Late { host: self.host.clone(), wait: call.wait };
        let answer: Bytes = tokio::time::timeout(call.wait, answer).await.map_err(late)??;
        let text = if answer.is_empty() { b"null".as_slice() } else { &answer };
        serde_json::from_slice(text).map_err(|error| nonsense(error.into()))
    }

    /// Sends a request whose URI is a path with query, streaming both ways. An error status becomes an error.
    pub async fn send(
        &self,
        mut request: Request<Body>,
        incarnation: Option<u64>,
    ) -> Result<Response<Incoming>, AgentError> {
        let nonsense = |source: Cause| AgentError::Nonsense { host: self.host.clone(), source };
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let now = Timestamp::now().as_second();
        let signature =
            self.key.sign(Direction::ControlToAgent, &self.host, request.method().as_str(), &target, now);
        let signature = HeaderValue::from_str(&signature).map_err(|error| nonsense(error.into()))?;
        // One client has one address, so the authority only has to be constant for the pool to work.
        *request.uri_mut() =
            format!("http://agent{target}").parse::<Uri>().map_err(|error| nonsense(error.into()))?;
        request.headers_mut().insert(LINK_HEADER, signature);
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

    /// Asks for a stream of bytes under `/agent/v1`. Answers its head's headers and the stream.
    pub async fn upgrade(
        &self,
        call: Call<'_>,
        protocol: &'static str,
    ) -> Result<(HeaderMap, TokioIo<Upgraded>), AgentError> {
        let nonsense = |source: Cause| AgentError::Nonsense { host: self.host.clone(), source };
        let request = Request::builder()
            .method(call.method)
            .uri(format!("/agent/v1{}", call.path))
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, protocol)
            .body(Body::empty())
            .map_err(|error| nonsense(error.into()))?;
        let answer = async {
            let mut response = self.send(request, call.incarnation).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(nonsense(format!("status {} to `{protocol}`", response.status()).into()));
            }
            let headers = std::mem::take(response.headers_mut());
            let stream = hyper::upgrade::on(response).await.map_err(|error| self.broken(error.into()))?;
            Ok((headers, TokioIo::new(stream)))
        };
        let late = |_| AgentError::Late { host: self.host.clone(), wait: call.wait };
        tokio::time::timeout(call.wait, answer).await.map_err(late)?
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
        self.broken(error.into())
    }

    fn broken(&self, source: Cause) -> AgentError {
        AgentError::Broken { host: self.host.clone(), source }
    }

    async fn refusal(&self, response: Response<Incoming>) -> AgentError {
        let status = response.status().as_u16();
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = match Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(source) => return self.broken(source),
        };
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => {
                let retry_after = retry_after.or(body.code.retry_after_seconds());
                AgentError::Answered { status, body: Box::new(body), retry_after }
            }
            Err(error) => {
                let shown = String::from_utf8_lossy(&bytes).chars().take(200).collect::<String>();
                let source = format!("status {status}, body `{shown}`: {error}").into();
                AgentError::Nonsense { host: self.host.clone(), source }
            }
        }
    }
}

/// Where an agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Connector {
    Unix(PathBuf),
    Tcp(String),
}

impl Connector {
    fn parse(address: &str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.into()));
        }
        let authority = address.strip_prefix("http://")?.trim_end_matches('/');
        let uri: Uri = format!("http://{authority}").parse().ok()?;
        uri.port_u16()?;
        Some(Self::Tcp(authority.to_owned()))
    }

    async fn connect(self) -> std::io::Result<AgentStream> {
        let stream: Box<dyn Stream> = match self {
            Connector::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Connector::Tcp(authority) => {
                let stream = TcpStream::connect(authority).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        Ok(AgentStream(TokioIo::new(stream)))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = AgentStream;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<AgentStream>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(CONNECT_WAIT, connector.connect()).await {
                Ok(connected) => connected,
                Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of either kind.
struct AgentStream(TokioIo<Box<dyn Stream>>);

impl Connection for AgentStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for AgentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for AgentStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, expect: Option<Connector>) {
        assert_eq!(Connector::parse(address), expect, "{address:?}");
    }

    #[test]
    fn addresses_are_unix_paths_or_host_and_port() {
        check("unix:/run/agent.sock", Some(Connector::Unix("/run/agent.sock".into())));
        check("unix:agent.sock", None);
        check("http://10.0.0.7:7070", Some(Connector::Tcp("10.0.0.7:7070".into())));
        check("http://10.0.0.7:7070/", Some(Connector::Tcp("10.0.0.7:7070".into())));
        check("http://10.0.0.7", None);
        check("10.0.0.7:7070", None);
        check("", None);
    }
}
