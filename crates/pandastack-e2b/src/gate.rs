//! Admission to a sandbox's ports: the sandbox must accept requests, and the caller must hold its token.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Extensions, HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use pandastack_edge::{Client, Target};
use pandastack_types::SandboxId;
use pandastack_types::api::Sandbox;

use crate::error::{RestError, RpcCode, RpcError, SandboxGone};
use crate::native::{DelegatedAccess, DirectoryUnavailable, Identity, Native};
use crate::sandbox_state::{auto_resumes, is_paused, is_visible};
use crate::session::{Session, no_sandbox_named};
use crate::token::{Operation, Signed};

/// Message for a missing or wrong token, with the next step.
pub(crate) const TOKEN_REQUIRED: &str =
    "the sandbox's access token is missing or wrong; connect to the sandbox to get it";

/// Message for too many wrong tokens, with the next step.
const TOO_MANY_WRONG: &str =
    "too many requests with invalid access tokens or signatures from this address; retry later";

/// Middleware: adds the [`Session`] of the request's sandbox, or refuses in the form that clients understand.
pub(crate) async fn open_session(State(native): State<Native>, mut request: Request, next: Next) -> Response {
    let Some(Target { sandbox, .. }) = request.extensions().get::<Target>().cloned() else {
        return no_sandbox_named().into_response();
    };
    match session_of(&native, sandbox, request.extensions()).await {
        Ok(session) => {
            request.extensions_mut().insert(session);
            next.run(request).await
        }
        Err(refusal) => refusal,
    }
}

/// The session of a sandbox, if the sandbox accepts requests.
pub(crate) async fn session_of(
    native: &Native,
    sandbox: SandboxId,
    extensions: &Extensions,
) -> Result<Session, Response> {
    let found = native.directory.find(&sandbox).await;
    let found = found.map_err(|error| RestError::from(error).into_response())?;
    if let Err(reason) = check_state(found.as_ref().map(|found| &found.sandbox)) {
        return Err(SandboxGone { sandbox, reason }.into_response());
    }
    let default_user = found.and_then(|found| found.user);
    let identity = Identity::Sandbox(DelegatedAccess { sandbox: sandbox.clone(), key: None });
    Ok(Session { native: native.caller(identity, extensions), sandbox, default_user })
}

/// Refuses a sandbox that does not run now.
pub(crate) async fn check_running(native: &Native, sandbox: SandboxId) -> Result<(), Response> {
    let found = native.directory.find(&sandbox).await;
    let found = found.map_err(|error| RestError::from(error).into_response())?;
    match found.map(|found| found.sandbox) {
        Some(found) if is_visible(&found) && !is_paused(&found) => Ok(()),
        Some(found) if is_paused(&found) => {
            Err(SandboxGone { sandbox, reason: "it is paused; its next request resumes it" }.into_response())
        }
        _ => Err(SandboxGone { sandbox, reason: "it was killed" }.into_response()),
    }
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
    mut request: Request,
    next: Next,
) -> Response {
    if request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    let from = address_of(request.extensions());
    match check_credential(&native, &session.sandbox, request.headers(), None, from).await {
        Ok(prefix) => {
            request.extensions_mut().insert(session.with_token_of(prefix));
            next.run(request).await
        }
        Err(CredentialError::Wrong(what)) => RpcError::new(RpcCode::Unauthenticated, what).into_response(),
        Err(CredentialError::TooMany) => {
            RpcError::new(RpcCode::ResourceExhausted, TOO_MANY_WRONG).into_response()
        }
        Err(CredentialError::Unavailable(error)) => RestError::from(error).into_response(),
    }
}

/// Reason why a credential was not accepted.
pub(crate) enum CredentialError {
    Wrong(String),
    TooMany,
    Unavailable(DirectoryUnavailable),
}

impl From<CredentialError> for RestError {
    fn from(refused: CredentialError) -> Self {
        match refused {
            CredentialError::Wrong(what) => RestError::new(StatusCode::UNAUTHORIZED, what),
            CredentialError::TooMany => RestError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_WRONG),
            CredentialError::Unavailable(error) => error.into(),
        }
    }
}

/// The client's address.
pub(crate) fn address_of(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Client>().map(|client| client.address)
}

/// Checks the sandbox's token in a request, or else a signature made with it; returns the prefix of the key
/// that the token was made for. Wrong ones are counted by address.
pub(crate) async fn check_credential(
    native: &Native,
    sandbox: &SandboxId,
    headers: &HeaderMap,
    signed: Option<(Signed<'_>, Operation)>,
    from: Option<IpAddr>,
) -> Result<String, CredentialError> {
    if !native.directory.admits(from) {
        return Err(CredentialError::TooMany);
    }
    let access = native.directory.access(sandbox, from).await.map_err(CredentialError::Unavailable)?;
    let access = access.unwrap_or_default();
    let token = headers.get("x-access-token").and_then(|value| value.to_str().ok());
    if let Some(given) = token.filter(|given| native.tokens.accepts(sandbox, &access, given)) {
        return Ok(given.split('.').next().unwrap_or_default().to_owned());
    }
    let now = Timestamp::now().as_second();
    let checked =
        signed.map(|(signed, operation)| native.tokens.check(&signed, operation, sandbox, &access, now));
    let wrong = match checked {
        Some(Ok(prefix)) => return Ok(prefix),
        Some(Err(refused)) => refused.to_string(),
        None => TOKEN_REQUIRED.to_owned(),
    };
    native.directory.count_invalid_key(from);
    Err(CredentialError::Wrong(wrong))
}
