//! Admission to a sandbox's ports: the sandbox must accept requests, and the caller must hold its token.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method};
use pandastack_edge::Target;
use pandastack_types::SandboxId;
use pandastack_types::api::Sandbox;

use crate::error::{RestError, RpcCode, RpcError, SandboxGone};
use crate::native::{Identity, Native};
use crate::sandbox_state::{auto_resumes, is_paused, is_visible};
use crate::session::{Session, no_sandbox_named};

/// What to do about a missing or wrong token.
pub(crate) const TOKEN_REQUIRED: &str =
    "the sandbox's access token is missing or wrong; connect to the sandbox to get it";

/// Middleware: adds the [`Session`] of the request's sandbox, or refuses in the form that clients understand.
pub(crate) async fn open_session(State(native): State<Native>, mut request: Request, next: Next) -> Response {
    let Some(Target { sandbox, .. }) = request.extensions().get::<Target>().cloned() else {
        return no_sandbox_named().into_response();
    };
    match session_of(&native, sandbox).await {
        Ok(session) => {
            request.extensions_mut().insert(session);
            next.run(request).await
        }
        Err(refusal) => refusal,
    }
}

/// The session of a sandbox, if the sandbox accepts requests.
pub(crate) async fn session_of(native: &Native, sandbox: SandboxId) -> Result<Session, Response> {
    let found = native.directory.find(&sandbox).await;
    let found = found.map_err(|error| RestError::from(error).into_response())?;
    if let Err(reason) = check_state(found.as_ref()) {
        return Err(SandboxGone { sandbox, reason }.into_response());
    }
    Ok(Session { native: native.caller(Identity::Sandbox(sandbox.clone())), sandbox })
}

fn check_state(sandbox: Option<&Sandbox>) -> Result<(), &'static str> {
    match sandbox {
        Some(sandbox) if is_paused(sandbox) && !auto_resumes(sandbox) => {
            Err("it is paused; connect to it to resume it")
        }
        Some(sandbox) if is_visible(sandbox) => Ok(()),
        _ => Err("it was killed, it expired, or it never existed"),
    }
}

/// Middleware: lets only holders of the sandbox's token pass.
pub(crate) async fn check_token(
    State(native): State<Native>,
    session: Session,
    request: Request,
    next: Next,
) -> Response {
    match has_token(&native, &session.sandbox, request.headers()) || request.method() == Method::OPTIONS {
        true => next.run(request).await,
        false => RpcError::new(RpcCode::Unauthenticated, TOKEN_REQUIRED).into_response(),
    }
}

/// Whether a request carries the sandbox's token.
pub(crate) fn has_token(native: &Native, sandbox: &SandboxId, headers: &HeaderMap) -> bool {
    let given = headers.get("x-access-token").and_then(|value| value.to_str().ok());
    given.is_some_and(|given| native.tokens.accepts(sandbox, given))
}
