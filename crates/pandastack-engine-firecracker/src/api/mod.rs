//! Client of Firecracker's API: HTTP over a unix socket.
//!
//! Each call opens its own connection, so a broken one affects no other call. [`ApiError`] separates
//! refusals, after which the process is unchanged, from broken connections, after which it has
//! probably exited.

pub mod types;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::limits::{ANSWER_BYTES_MAX, COMMAND_MAX, LOAD_MAX, PAUSE_MAX, SNAPSHOT_MAX};
use crate::socket;
use types::{Instance, SnapshotCreate, SnapshotLoad, VmState, VmUpdate};

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The socket has no listener: the process exited or the socket was removed.
    #[error("nothing answers at {}", .path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The connection closed before a complete answer.
    #[error("the connection ended before the answer: {0}")]
    Broken(String),
    /// Firecracker refused the call.
    #[error("{message}")]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Value of `fault_message`.
        message: String,
    },
    /// The answer is not valid.
    #[error("unexpected answer: {0}")]
    Malformed(String),
    /// The response timed out.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
}

impl ApiError {
    /// Returns whether the process may have exited.
    pub fn suggests_exit(&self) -> bool {
        matches!(self, ApiError::Unreachable { .. } | ApiError::Broken(_))
    }
}

/// The error body of the API.
#[derive(Deserialize)]
struct Fault {
    fault_message: String,
}

/// The API of one process.
#[derive(Debug, Clone)]
pub struct Api {
    socket: PathBuf,
}

impl Api {
    /// A client of the API at `socket`. Connects on each call.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Id, state and version of the instance.
    pub async fn describe(&self) -> Result<Instance, ApiError> {
        let body = self.call(Method::GET, "/", Bytes::new(), COMMAND_MAX).await?;
        decode(&body)
    }

    /// Sends a `PUT` that has no answer body.
    pub async fn put(&self, path: &str, body: &impl Serialize, limit: Duration) -> Result<(), ApiError> {
        self.call(Method::PUT, path, encode(body)?, limit).await.map(drop)
    }

    /// Sends a `PATCH` that has no answer body.
    pub async fn patch(&self, path: &str, body: &impl Serialize, limit: Duration) -> Result<(), ApiError> {
        self.call(Method::PATCH, path, encode(body)?, limit).await.map(drop)
    }

    /// Pauses or resumes the machine.
    pub async fn set_state(&self, state: VmState) -> Result<(), ApiError> {
        self.patch("/vm", &VmUpdate { state }, PAUSE_MAX).await
    }

    /// Takes a snapshot of a paused machine. Firecracker syncs both files before it answers.
    pub async fn create_snapshot(&self, snapshot: &SnapshotCreate) -> Result<(), ApiError> {
        self.put("/snapshot/create", snapshot, SNAPSHOT_MAX).await
    }

    /// Loads a snapshot into a fresh process. If it fails, Firecracker exits.
    pub async fn load_snapshot(&self, snapshot: &SnapshotLoad) -> Result<(), ApiError> {
        self.put("/snapshot/load", snapshot, LOAD_MAX).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, ApiError> {
        timeout(limit, self.exchange(method, path, body)).await.unwrap_or(Err(ApiError::Late(limit)))
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ApiError> {
        let unreachable = |source| ApiError::Unreachable { path: self.socket.clone(), source };
        let stream = socket::connect(&self.socket).await.map_err(unreachable)?;
        exchange_over(stream, method, path, body).await
    }
}

/// One call over a connection.
pub(crate) async fn exchange_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes, ApiError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "localhost")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| ApiError::Malformed(error.to_string()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(body_error)?.to_bytes()))
    };
    // The connection ends when the sender is dropped, and reports its errors through it.
    let (answer, _) = tokio::join!(exchange, connection);
    let (status, body) = answer?;
    check_status(status, body)
}

fn check_status(status: StatusCode, body: Bytes) -> Result<Bytes, ApiError> {
    if status.is_success() {
        return Ok(body);
    }
    match serde_json::from_slice::<Fault>(&body) {
        Ok(fault) => Err(ApiError::Refused { status: status.as_u16(), message: fault.fault_message }),
        Err(_) => Err(ApiError::Malformed(format!("status {status} without a reason: {}", excerpt(&body)))),
    }
}

/// A transport error: malformed if the answer is not HTTP, otherwise a broken connection.
fn broken(error: hyper::Error) -> ApiError {
    if error.is_parse() {
        ApiError::Malformed(error.to_string())
    } else {
        ApiError::Broken(error.to_string())
    }
}

fn body_error(error: Box<dyn std::error::Error + Send + Sync>) -> ApiError {
    if error.is::<LengthLimitError>() {
        return ApiError::Malformed(format!("an answer of more than {ANSWER_BYTES_MAX} bytes"));
    }
    match error.downcast::<hyper::Error>() {
        Ok(error) => broken(*error),
        Err(error) => ApiError::Broken(error.to_string()),
    }
}

fn encode(body: &impl Serialize) -> Result<Bytes, ApiError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| ApiError::Malformed(error.to_string()))
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Malformed(format!("{error}: {}", excerpt(body))))
}

/// The beginning of an answer, for messages.
fn excerpt(body: &[u8]) -> String {
    const EXCERPT_BYTES: usize = 200;
    String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES)]).into_owned()
}
