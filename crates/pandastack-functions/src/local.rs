//! Functions as local processes: the platform's runtime, bootstraps and events, without isolation.
//!
//! The same runtime runs here as in a machine, so functions behave the same; but there is no
//! machine around it. The handler has the developer's files, network and installed packages, and
//! nothing is recorded.
//!
//! Invariants: processes end with the runtime that was started here; a handler that hangs, crashes
//! or cannot be imported is reported, and restarted by the caller.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, header};
use pandastack_function_proto::{ANSWER_BYTES_MAX, Call, Outcome};
use pandastack_rest::ApiError;
use pandastack_types::api::Runtime;
use pandastack_types::limits::{EVENT_BYTES_MAX, INIT_SECONDS_MAX};
use pandastack_types::{Error, ErrorCode, FunctionId, Result, RunId};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use crate::build::{NODE_BOOTSTRAP, PYTHON_BOOTSTRAP};
use crate::connection::{Connection, RuntimeFrame};
use crate::deploy_routes::read_limited;
use crate::url;

/// Longest time for the runtime to listen.
const LISTEN_WAIT: Duration = Duration::from_secs(10);
/// Interval between attempts to connect to the runtime: no event reports that a program listens.
const CONNECT_EVERY: Duration = Duration::from_millis(20);
/// Time that a call is waited for beyond its timeout: the runtime kills the handler and reports it.
const GRACE: Duration = Duration::from_secs(10);

/// Command to run.
#[derive(Debug, Clone)]
pub struct LocalFunction {
    /// Directory of the code.
    pub directory: PathBuf,
    /// Runtime.
    pub runtime: Runtime,
    /// Entry point.
    pub entrypoint: String,
    /// Environment of the handler, beside the developer's own.
    pub env: BTreeMap<String, String>,
    /// Time limit of a call.
    pub timeout: Duration,
    /// Calls at once.
    pub concurrency: u32,
}

/// Reason why a function does not run.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The runtime could not be started.
    #[error("the function cannot be started locally")]
    Start(#[from] std::io::Error),
    /// The handler could not be imported.
    #[error("the handler is not ready: {why}")]
    NotReady {
        /// The handler's own error.
        why: String,
        /// Output of the handler.
        log: String,
    },
}

/// A function that runs. Dropped, its processes end.
pub struct LocalRuntime {
    child: Child,
    port: u16,
    timeout: Duration,
    id: FunctionId,
    instance: RunId,
    over: Notify,
}

impl LocalRuntime {
    /// Starts the runtime (the guest program, at `guest`) with the function's handler; returns when
    /// the handler waits for calls. `scratch` is a directory for the bootstraps, kept by the caller
    /// for as long as this runs.
    pub async fn start(guest: &Path, scratch: &Path, function: &LocalFunction) -> Result<Self, LocalError> {
        std::fs::write(scratch.join("bootstrap.py"), PYTHON_BOOTSTRAP)?;
        std::fs::write(scratch.join("bootstrap.mjs"), NODE_BOOTSTRAP)?;
        let root = std::fs::canonicalize(&function.directory)?;
        let (port, api_port) = free_ports()?;
        let program: Vec<PathBuf> = match function.runtime {
            Runtime::Python => vec!["python3".into(), scratch.join("bootstrap.py")],
            Runtime::Nodejs => vec!["node".into(), scratch.join("bootstrap.mjs")],
            Runtime::Custom => vec![root.join(&function.entrypoint)],
        };
        let child = Command::new(guest)
            .args(["function", "--local", &port.to_string(), &api_port.to_string(), "--"])
            .args(program)
            .current_dir(&root)
            .envs(&function.env)
            .env("_HANDLER", &function.entrypoint)
            .env("LAMBDA_TASK_ROOT", &root)
            .env("LAMBDA_RUNTIME_DIR", scratch)
            .env("AWS_LAMBDA_FUNCTION_NAME", "local")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "0")
            .env("PANDASTACK_CONCURRENCY", function.concurrency.max(1).to_string())
            .env("PYTHONPATH", &root)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (id, instance) = (FunctionId::random(), RunId::random());
        let started = Self { child, port, timeout: function.timeout, id, instance, over: Notify::new() };
        started.await_ready().await?;
        Ok(started)
    }

    async fn await_ready(&self) -> Result<(), LocalError> {
        let lost = |error: Error| LocalError::Start(std::io::Error::other(error.message));
        let until = tokio::time::Instant::now() + LISTEN_WAIT;
        let mut connection = loop {
            match self.connect().await {
                Ok(connection) => break connection,
                Err(error) if tokio::time::Instant::now() > until => return Err(lost(error)),
                Err(_) => tokio::time::sleep(CONNECT_EVERY).await,
            }
        };
        let ready = connection.await_ready(Duration::from_secs(INIT_SECONDS_MAX)).await.map_err(lost)?;
        if ready.ready {
            eprint!("{}", ready.log);
            return Ok(());
        }
        let why = ready.failure.unwrap_or_else(|| "it does not request events".to_owned());
        Err(LocalError::NotReady { why, log: ready.log })
    }

    async fn connect(&self) -> Result<Connection<TcpStream>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await;
        let stream = stream.map_err(|error| {
            Error::new(ErrorCode::GuestUnavailable, format!("the function's runtime was lost: {error}"))
        })?;
        Ok(Connection::over(stream, "the local function"))
    }

    /// Returns when the runtime serves no more calls and has to be restarted.
    pub async fn over(&self) {
        self.over.notified().await;
    }

    /// The process of the runtime.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Calls the function; its output goes to standard error.
    async fn call(&self, event: &[u8], http: bool) -> Result<(Outcome, Bytes, Option<String>, String)> {
        let call = Call {
            id: RunId::random().to_string(),
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            arn: "arn:pandastack:function:local:local:0".to_owned(),
            attempt: 1,
            trace_id: String::new(),
            instance: self.instance.to_string(),
            http,
        };
        let mut connection = self.connect().await?;
        connection.begin(&call, event).await?;
        let (mut body, mut content_type) = (Vec::new(), String::new());
        loop {
            match connection.next().await? {
                RuntimeFrame::Log(_, text) => {
                    let _ = std::io::stderr().write_all(&text);
                }
                RuntimeFrame::Head(head) => {
                    content_type = if head.streaming { head.content_type } else { String::new() }
                }
                RuntimeFrame::Data(part) if body.len() + part.len() <= ANSWER_BYTES_MAX => {
                    body.extend_from_slice(&part)
                }
                RuntimeFrame::Data(_) => return Err(url::malformed("it is too large")),
                RuntimeFrame::End(end) => return Ok((end.outcome, body.into(), end.message, content_type)),
            }
        }
    }

    /// An event as the body, or any HTTP request.
    async fn answer(&self, request: Request) -> Result<Response> {
        let (parts, body) = request.into_parts();
        let refuse = || {
            Error::new(ErrorCode::BodyTooLarge, format!("an event must be at most {EVENT_BYTES_MAX} bytes"))
        };
        let body = read_limited(body, EVENT_BYTES_MAX, refuse).await?;
        let http = !parts.headers.contains_key("x-invocation-type");
        let event: Bytes = match http {
            true => {
                let host = parts
                    .headers
                    .get(header::HOST)
                    .and_then(|value| value.to_str().ok())
                    .unwrap_or("localhost");
                let event = url::event(&parts, &body, &self.id, host, RunId::random().as_str());
                serde_json::to_vec(&event).map_err(Error::internal)?.into()
            }
            false => crate::call_routes::event_of(body)?,
        };
        let made = tokio::time::timeout(self.timeout + GRACE, self.call(&event, http)).await;
        let late = |_| Error::new(ErrorCode::ExecTimeout, "the call timed out");
        let (outcome, body, message, content_type) = match made.map_err(late).and_then(|made| made) {
            Ok(ended) => ended,
            Err(error) => {
                self.over.notify_one();
                return Err(error);
            }
        };
        if matches!(outcome, Outcome::Timeout | Outcome::Crashed) {
            self.over.notify_one();
        }
        match (outcome, http) {
            (Outcome::Success, true) => {
                url::collected(&body, &content_type).map_err(|why| url::malformed(&why))
            }
            (Outcome::Success, false) => Ok(json(body, false)),
            (Outcome::Error, false) => Ok(json(body, true)),
            (Outcome::Timeout, _) => Err(Error::new(ErrorCode::ExecTimeout, message.unwrap_or_default())),
            _ => {
                let why = message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
                Err(Error::new(ErrorCode::GuestUnavailable, format!("the function failed: {why}")))
            }
        }
    }
}

fn json(body: Bytes, failed: bool) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if failed {
        response.headers_mut().insert("x-function-error", HeaderValue::from_static("Unhandled"));
    }
    response
}

/// Two ports that are free just now.
fn free_ports() -> std::io::Result<(u16, u16)> {
    let (one, other) =
        (StdListener::bind((Ipv4Addr::LOCALHOST, 0))?, StdListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    Ok((one.local_addr()?.port(), other.local_addr()?.port()))
}

/// Serves the current runtime over HTTP: every request is handled as one to the function's URL;
/// with `X-Invocation-Type`, its body is the event.
pub fn local_router(running: watch::Receiver<Option<Arc<LocalRuntime>>>) -> Router {
    Router::new().fallback(serve).with_state(running)
}

async fn serve(
    State(running): State<watch::Receiver<Option<Arc<LocalRuntime>>>>,
    request: Request,
) -> Response {
    let now = running.borrow().clone();
    let answered = match now {
        Some(runtime) => runtime.answer(request).await,
        None => Err(Error::new(
            ErrorCode::Unavailable,
            "the function is not running; see the output of `pandastack fn dev`",
        )),
    };
    answered.unwrap_or_else(|error| ApiError(error).into_response())
}
