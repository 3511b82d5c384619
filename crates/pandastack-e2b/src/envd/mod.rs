//! The daemon that E2B's clients expect on port 49983 of a sandbox, without a process in the sandbox.
//!
//! | what | where |
//! |---|---|
//! | `/process.Process/*`, `/filesystem.Filesystem/*` | Connect, JSON ([`connect`]) |
//! | `/files` | bytes in and out ([`files`]) |
//! | `/health` | 204 while the sandbox serves |
//!
//! Whoever presents the sandbox's access token is its user. The gate in front ([`admit`]) answers for sandboxes that are
//! gone or paused, in the form that clients take for that.

mod connect;
mod cors;
mod entry;
pub(crate) mod files;
mod filesystem;
mod follow;
mod process;
mod selector;
mod upload;
mod watch;
mod watcher;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use http::{Method, StatusCode};
use pandastack_edge::Target;
use pandastack_types::SandboxId;
use pandastack_types::api::Sandbox;

use crate::control::shape::{auto_resumes, is_paused, is_shown};
use crate::error::{Gone, RestError, RestResult, RpcCode, RpcError};
use crate::native::{Caller, Identity, Native};
use crate::user::{self, User};
use crate::{ENVD_PORT, INTERPRETER_PORT};
use watcher::Watchers;

/// A sandbox that serves, and the native API on behalf of it.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) sandbox: SandboxId,
    pub(crate) native: Caller,
}

impl Session {
    /// A path of the native API about this sandbox.
    pub(crate) fn path(&self, tail: &str) -> String {
        format!("/sandboxes/{}/{tail}", self.sandbox)
    }

    /// The user that a request names.
    pub(crate) async fn user(&self, headers: &http::HeaderMap) -> RestResult<User> {
        user::find(&self.native, &self.sandbox, user::named_by(headers)?).await
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Session {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        let found = Extension::<Session>::from_request_parts(parts, state).await;
        let nowhere = |_| {
            RestError::new(
                StatusCode::NOT_FOUND,
                "this route needs a sandbox; name one in the host name or the E2b-Sandbox-Id header",
            )
        };
        found.map(|Extension(session)| session).map_err(nowhere)
    }
}

/// What answers on both ports.
pub(crate) fn routes(native: Native, interpreter: Router) -> Router {
    let watchers = Arc::new(Watchers::default());
    let envd = Router::new()
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/Update", post(process::update))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/WatchDir", post(watch::watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(watcher::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watcher::events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watcher::remove))
        .layer(from_fn_with_state(native.clone(), check_token))
        .route("/health", get(async || StatusCode::NO_CONTENT))
        .route("/files", get(files::read).merge(post(files::write)))
        .fallback(unknown)
        .layer(Extension(watchers))
        .with_state(native.clone());
    let by_port = Ports { envd, interpreter };
    Router::new()
        .fallback(dispatch)
        .layer(Extension(by_port))
        .layer(from_fn_with_state(native, admit))
        .layer(from_fn(cors::allow_any))
}

async fn unknown() -> RpcError {
    RpcError::new(
        RpcCode::Unimplemented,
        "this server does not support this call; see docs/reference/e2b-compatibility.md",
    )
}

#[derive(Clone)]
struct Ports {
    envd: Router,
    interpreter: Router,
}

async fn dispatch(
    Extension(ports): Extension<Ports>,
    Extension(target): Extension<Target>,
    request: Request,
) -> Response {
    use tower::ServiceExt;
    let router = match target.port {
        ENVD_PORT => ports.envd,
        INTERPRETER_PORT => ports.interpreter,
        _ => {
            return RestError::new(StatusCode::NOT_FOUND, "this port is served by the sandbox itself")
                .into_response();
        }
    };
    router.oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// Lets requests pass to sandboxes that serve.
async fn admit(State(native): State<Native>, mut request: Request, next: Next) -> Response {
    let Some(Target { sandbox, .. }) = request.extensions().get::<Target>().cloned() else {
        return RestError::new(
            StatusCode::NOT_FOUND,
            "this route needs a sandbox; name one in the host name or the E2b-Sandbox-Id header",
        )
        .into_response();
    };
    let found = match native.directory.find(&sandbox).await {
        Ok(found) => found,
        Err(error) => return RestError::from(error).into_response(),
    };
    if let Err(why) = serves(found.as_ref()) {
        return Gone { sandbox, why }.into_response();
    }
    let caller = native.caller(Identity::Sandbox(sandbox.clone()));
    request.extensions_mut().insert(Session { sandbox, native: caller });
    next.run(request).await
}

fn serves(sandbox: Option<&Sandbox>) -> Result<(), &'static str> {
    match sandbox {
        Some(sandbox) if is_paused(sandbox) && !auto_resumes(sandbox) => {
            Err("it is paused; connect to it to resume it")
        }
        Some(sandbox) if is_shown(sandbox) => Ok(()),
        _ => Err("it was killed, it expired, or it never existed"),
    }
}

/// Lets only holders of the sandbox's token pass.
pub(crate) async fn check_token(
    State(native): State<Native>,
    session: Session,
    request: Request,
    next: Next,
) -> Response {
    match has_token(&native, &session.sandbox, request.headers()) || request.method() == Method::OPTIONS {
        true => next.run(request).await,
        false => RpcError::new(RpcCode::Unauthenticated, TOKEN_WANTED).into_response(),
    }
}

/// What to do about a missing or wrong token.
const TOKEN_WANTED: &str = "the sandbox's access token is missing or wrong; connect to the sandbox to get it";

fn has_token(native: &Native, sandbox: &SandboxId, headers: &http::HeaderMap) -> bool {
    let given = headers.get("x-access-token").and_then(|value| value.to_str().ok());
    given.is_some_and(|given| native.tokens.accepts(sandbox, given))
}
