//! `/files`: bytes out and in, for holders of the token or of a URL signed with it.
//!
//! A signed URL that a client made with one address for all sandboxes names none. The sandbox is then the one whose token
//! the signature was made with: the newest ones are tried.

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use jiff::Timestamp;
use pandastack_types::SandboxId;
use serde::Deserialize;
use serde_json::Value;

use super::upload;
use crate::error::{RestError, RestResult};
use crate::gate::{TOKEN_REQUIRED, has_token, session_of};
use crate::limits::SIGNED_CANDIDATES_MAX;
use crate::native::{Native, encode};
use crate::session::Session;
use crate::token::{Operation, SignatureRefused, Signed};
use crate::user;

/// Headers of a read that are forwarded to the native API.
const FORWARDED: [HeaderName; 2] = [header::RANGE, header::IF_RANGE];

/// Query of both calls.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Args {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
}

impl Args {
    fn signed(&self) -> Option<Signed<'_>> {
        Some(Signed {
            path: self.path.as_deref().unwrap_or_default(),
            user: self.username.as_deref().unwrap_or_default(),
            signature: self.signature.as_deref()?,
            expiration: self.signature_expiration,
        })
    }

    fn check(
        &self,
        native: &Native,
        sandbox: &SandboxId,
        operation: Operation,
        headers: &HeaderMap,
    ) -> RestResult<()> {
        if has_token(native, sandbox, headers) {
            return Ok(());
        }
        let refused = |what: String| RestError::new(StatusCode::UNAUTHORIZED, what);
        let signed = self.signed().ok_or_else(|| refused(TOKEN_REQUIRED.to_owned()))?;
        let now = Timestamp::now().as_second();
        signed
            .check(operation, &native.tokens.token(sandbox), now)
            .map_err(|error| refused(error.to_string()))
    }
}

/// A query that cannot be read, in the form that clients read.
type ArgsResult = Result<Query<Args>, axum::extract::rejection::QueryRejection>;

fn args(query: ArgsResult) -> RestResult<Args> {
    let refused = |_| RestError::bad_request("invalid query; use path, username and signature");
    query.map(|Query(args)| args).map_err(refused)
}

/// Reads a file.
pub(super) async fn read(
    State(native): State<Native>,
    session: Session,
    query: ArgsResult,
    headers: HeaderMap,
) -> RestResult<Response> {
    let args = args(query)?;
    args.check(&native, &session.sandbox, Operation::Read, &headers)?;
    download(&session, &args, &headers).await
}

/// Writes files.
pub(super) async fn write(
    State(native): State<Native>,
    session: Session,
    query: ArgsResult,
    request: Request,
) -> RestResult<Json<Vec<Value>>> {
    let args = args(query)?;
    args.check(&native, &session.sandbox, Operation::Write, request.headers())?;
    store(&session, &args, request).await
}

/// Reads a file by a signed URL that names no sandbox.
pub(super) async fn read_signed(
    State(native): State<Native>,
    query: ArgsResult,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let args = args(query).map_err(IntoResponse::into_response)?;
    let session = signer(&native, &args, Operation::Read).await?;
    download(&session, &args, &headers).await.map_err(IntoResponse::into_response)
}

/// Writes a file by a signed URL that names no sandbox.
pub(super) async fn write_signed(
    State(native): State<Native>,
    query: ArgsResult,
    request: Request,
) -> Result<Json<Vec<Value>>, Response> {
    let args = args(query).map_err(IntoResponse::into_response)?;
    let session = signer(&native, &args, Operation::Write).await?;
    store(&session, &args, request).await.map_err(IntoResponse::into_response)
}

/// The sandbox whose token a URL was signed with.
async fn signer(native: &Native, args: &Args, operation: Operation) -> Result<Session, Response> {
    let refused = |what: &str| RestError::new(StatusCode::UNAUTHORIZED, what).into_response();
    let signed = args
        .signed()
        .ok_or_else(|| refused("no sandbox given; send the E2b-Sandbox-Id header or use a signed URL"))?;
    let candidates = native.directory.newest(SIGNED_CANDIDATES_MAX).await;
    let candidates = candidates.map_err(|error| RestError::from(error).into_response())?;
    let now = Timestamp::now().as_second();
    for sandbox in candidates {
        match signed.check(operation, &native.tokens.token(&sandbox), now) {
            Ok(()) => return session_of(native, sandbox).await,
            Err(SignatureRefused::Mismatch) => {}
            Err(expired) => return Err(refused(&expired.to_string())),
        }
    }
    Err(refused("the signature matches no sandbox; create another signed URL"))
}

async fn download(session: &Session, args: &Args, headers: &HeaderMap) -> RestResult<Response> {
    let user = user::find(&session.native, &session.sandbox, args.username.clone()).await?;
    let given = args.path.as_deref().filter(|path| !path.is_empty());
    let path = user
        .absolute(given.ok_or_else(|| RestError::bad_request("`path` is missing; give the path of a file"))?);
    let uri = format!("/v1{}", session.path(&format!("fs?path={}", encode(&path))));
    let mut request = http::Request::builder().method(Method::GET).uri(uri);
    for name in FORWARDED {
        if let Some(value) = headers.get(&name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(Body::empty()).map_err(|error| RestError::bad_request(error.to_string()))?;
    Ok(session.native.send(request).await?)
}

async fn store(session: &Session, args: &Args, request: Request) -> RestResult<Json<Vec<Value>>> {
    let user = user::find(&session.native, &session.sandbox, args.username.clone()).await?;
    upload::store(session, &user, args.path.as_deref().filter(|path| !path.is_empty()), request)
        .await
        .map(Json)
}
