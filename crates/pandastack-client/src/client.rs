//! The transport: sends one call with a deadline and reads its response.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use pandastack_types::sse;
use reqwest::header::{ACCEPT, HeaderMap, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::error::{ClientError, Result, root_cause};

/// Timeout of a connection attempt.
const CONNECT_SECONDS: u64 = 5;
/// Timeout of a call that only reads.
pub(crate) const READ_SECONDS: u64 = 30;
/// Timeout of a call that creates or changes a machine.
pub(crate) const WRITE_SECONDS: u64 = 180;
/// Timeout of a silent stream; the server sends a comment every 15 s.
const STREAM_SILENT_SECONDS: u64 = 60;
/// Maximum size of a stream event.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum size of an error body.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// An API client with a connection pool. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// A request being built.
pub(crate) struct Call {
    pub(crate) origin: Origin,
    builder: RequestBuilder,
}

/// Details of a call for error messages.
#[derive(Clone)]
pub(crate) struct Origin {
    /// Method and path.
    pub(crate) call: String,
    url: String,
    limit_seconds: u64,
}

/// A list response, with or without an envelope.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum List<T> {
    Bare(Vec<T>),
    Items { items: Vec<T> },
}

impl<T> List<T> {
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            List::Bare(items) | List::Items { items } => items,
        }
    }
}

/// An error body of any server version; every field may be missing.
#[derive(Default, Deserialize)]
struct LooseErrorBody {
    error: Option<String>,
    code: Option<String>,
    request_id: Option<String>,
    build_id: Option<String>,
}

impl Client {
    /// Creates a client. Does not connect yet.
    pub fn new(config: Config) -> Result<Self> {
        let bad_url = |detail: String| ClientError::BadUrl { url: config.api_url.clone(), detail };
        let base = Url::parse(&config.api_url).map_err(|error| bad_url(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(bad_url("it must start with http:// or https://".to_owned()));
        }
        let mut builder = pandastack_http::builder_for(base.as_str())
            .user_agent(concat!("pandastack-cli/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(CONNECT_SECONDS))
            .tcp_nodelay(true);
        if is_loopback(&base) {
            // A proxy cannot reach this machine's loopback address.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| bad_url(root_cause(&error)))?;
        Ok(Self { http, base, token: config.token })
    }

    /// Creates a client from the environment and the configuration file; an API key is required.
    pub fn from_environment() -> Result<Self> {
        let config = Config::from_environment()?;
        if config.token.is_none() {
            return Err(ClientError::NoKey);
        }
        Self::new(config)
    }

    /// URL of the server.
    pub fn api_url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Version of the server. Needs no API key.
    pub async fn version(&self) -> Result<pandastack_types::api::Version> {
        self.call_at(Method::GET, &["version"], READ_SECONDS).receive().await
    }

    /// Returns whether the server is ready. Needs no API key.
    pub async fn is_ready(&self, limit: Duration) -> bool {
        let Ok(url) = self.base.join("readyz") else { return false };
        let response = self.http.get(url).timeout(limit).send().await;
        response.is_ok_and(|response| response.status().is_success())
    }

    /// Builds a call under `/v1`. Segments are percent-encoded.
    pub(crate) fn call(&self, method: Method, segments: &[&str], limit_seconds: u64) -> Call {
        self.call_at(method, &[&["v1"], segments].concat(), limit_seconds)
    }

    /// Like [`Client::call`], for any path of the server.
    fn call_at(&self, method: Method, segments: &[&str], limit_seconds: u64) -> Call {
        let mut call = self.open_ended_call_at(method, segments);
        call.origin.limit_seconds = limit_seconds;
        call.with(|builder| builder.timeout(Duration::from_secs(limit_seconds)))
    }

    /// Like [`Client::call`], for responses without a time limit.
    pub(crate) fn open_ended_call(&self, method: Method, segments: &[&str]) -> Call {
        self.open_ended_call_at(method, &[&["v1"], segments].concat())
    }

    fn open_ended_call_at(&self, method: Method, segments: &[&str]) -> Call {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        let name = format!("{method} {}", url.path());
        let mut builder = self.http.request(method, url);
        if let Some(token) = &self.token {
            builder = builder.bearer_auth(token);
        }
        let url = self.api_url().to_owned();
        Call { origin: Origin { call: name, url, limit_seconds: CONNECT_SECONDS }, builder }
    }
}

impl Call {
    pub(crate) fn with(self, change: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Self {
        Call { builder: change(self.builder), origin: self.origin }
    }

    pub(crate) fn query(self, pairs: &[(&str, &str)]) -> Self {
        self.with(|builder| builder.query(pairs))
    }

    pub(crate) fn json(self, body: &impl serde::Serialize) -> Self {
        self.with(|builder| builder.json(body))
    }

    /// Sends the request; an error status becomes an error.
    pub(crate) async fn send(self) -> Result<(Origin, Response)> {
        let Call { origin, builder } = self;
        let response = builder.send().await.map_err(|error| origin.transport_error(&error))?;
        if response.status().is_success() {
            return Ok((origin, response));
        }
        Err(error_response(response).await)
    }

    /// Sends the request and reads a JSON response.
    pub(crate) async fn receive<T: DeserializeOwned>(self) -> Result<T> {
        let (origin, response) = self.send().await?;
        let body = response.bytes().await.map_err(|error| origin.transport_error(&error))?;
        let bad_response = |error: serde_json::Error| origin.bad_response(error.to_string());
        serde_json::from_slice(&body).map_err(bad_response)
    }

    /// Sends the request and reads a text response.
    pub(crate) async fn receive_text(self) -> Result<String> {
        let (origin, response) = self.send().await?;
        response.text().await.map_err(|error| origin.transport_error(&error))
    }

    /// Sends the request and ignores the response body.
    pub(crate) async fn finish(self) -> Result<()> {
        self.send().await.map(|_| ())
    }

    /// Sends the request and streams the response body.
    pub(crate) async fn chunks(self) -> Result<Chunks> {
        let (origin, response) = self.send().await?;
        let headers = response.headers().clone();
        Ok(Chunks { origin, headers, bytes: Box::pin(response.bytes_stream()) })
    }

    /// Sends the request and upgrades the connection.
    pub(crate) async fn upgrade(self) -> Result<reqwest::Upgraded> {
        let Call { origin, builder } = self;
        let response = builder.send().await.map_err(|error| origin.transport_error(&error))?;
        if response.status() != reqwest::StatusCode::SWITCHING_PROTOCOLS {
            return Err(error_response(response).await);
        }
        response.upgrade().await.map_err(|error| origin.transport_error(&error))
    }

    /// Sends the request and reads server-sent events.
    pub(crate) async fn events(self) -> Result<Events> {
        let chunks = self.with(|builder| builder.header(ACCEPT, "text/event-stream")).chunks().await?;
        Ok(Events { chunks, reader: sse::Reader::new(EVENT_BYTES_MAX) })
    }
}

impl Origin {
    fn transport_error(&self, error: &reqwest::Error) -> ClientError {
        if error.is_timeout() && !error.is_connect() {
            return ClientError::Deadline { call: self.call.clone(), limit_seconds: self.limit_seconds };
        }
        ClientError::Unreachable { url: self.url.clone(), detail: root_cause(error) }
    }

    fn bad_response(&self, detail: String) -> ClientError {
        ClientError::BadResponse { call: self.call.clone(), detail }
    }

    pub(crate) fn interrupted(&self, detail: String) -> ClientError {
        ClientError::Interrupted { call: self.call.clone(), detail }
    }
}

/// A streamed response body, with a timeout between chunks instead of a total one.
pub(crate) struct Chunks {
    pub(crate) origin: Origin,
    headers: HeaderMap,
    bytes: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
}

impl Chunks {
    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let silent = Duration::from_secs(STREAM_SILENT_SECONDS);
        match tokio::time::timeout(silent, self.bytes.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Some(Err(error))) => Err(self.origin.interrupted(root_cause(&error))),
            Ok(None) => Ok(None),
            Err(_) => Err(self.origin.interrupted(format!("no data for {STREAM_SILENT_SECONDS} s"))),
        }
    }
}

/// Server-sent events of one response.
pub(crate) struct Events {
    chunks: Chunks,
    reader: sse::Reader,
}

impl Events {
    /// The next event; `None` when the server closed the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<sse::Event>> {
        loop {
            match self.reader.next_event() {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(error) => return Err(self.interrupted(error.to_string())),
            }
            let Some(chunk) = self.chunks.next().await? else { return Ok(None) };
            self.reader.push(&chunk);
        }
    }

    /// A response header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.chunks.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn interrupted(&self, detail: String) -> ClientError {
        self.chunks.origin.interrupted(detail)
    }
}

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

async fn error_response(response: Response) -> ClientError {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let text = read_bounded(response).await;
    let body: LooseErrorBody = serde_json::from_str(&text).unwrap_or_default();
    let message = body.error.filter(|message| !message.is_empty());
    ClientError::Refused {
        status,
        code: body.code.unwrap_or_default(),
        message: message.unwrap_or_else(|| format!("the server returned status {status}")),
        request_id: body.request_id,
        build_id: body.build_id,
        retry_after,
    }
}

async fn read_bounded(response: Response) -> String {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let remaining = ERROR_BYTES_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(remaining)]);
        if body.len() == ERROR_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}
