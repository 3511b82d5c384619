//! `/files`: downloads and uploads, with the token or a signed URL.
//!
//! A signed URL that a client made with one address for all sandboxes names none, and a signature alone does
//! not tell which one is meant. Such a URL needs `sandbox_id` in its query, or the request `E2b-Sandbox-Id`.

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode, header};
use pandastack_types::SandboxId;
use serde::Deserialize;
use serde_json::Value;

use super::upload;
use crate::error::{RestError, RestResult};
use crate::gate::{address_of, check_credential, session_of};
use crate::native::Native;
use crate::native_paths as paths;
use crate::session::Session;
use crate::token::{Operation, Signed};

/// Headers of a read that are forwarded to the native API.
const FORWARDED: [HeaderName; 2] = [header::RANGE, header::IF_RANGE];

/// Query of both calls.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Args {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
    /// The sandbox, if neither the host name nor a header names it.
    sandbox_id: Option<String>,
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

    async fn check(
        &self,
        native: &Native,
        sandbox: &SandboxId,
        operation: Operation,
        (headers, extensions): (&HeaderMap, &Extensions),
    ) -> RestResult<String> {
        let signed = self.signed().map(|signed| (signed, operation));
        Ok(check_credential(native, sandbox, headers, signed, address_of(extensions)).await?)
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
    extensions: Extensions,
    headers: HeaderMap,
) -> RestResult<Response> {
    let args = args(query)?;
    let asked = (&headers, &extensions);
    let prefix = args.check(&native, &session.sandbox, Operation::Read, asked).await?;
    let session = session.with_token_of(prefix);
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
    let asked = (request.headers(), request.extensions());
    let prefix = args.check(&native, &session.sandbox, Operation::Write, asked).await?;
    let session = session.with_token_of(prefix);
    store(&session, &args, request).await
}

/// Reads a file by a signed URL that names no sandbox.
pub(super) async fn read_signed(
    State(native): State<Native>,
    query: ArgsResult,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let args = args(query).map_err(IntoResponse::into_response)?;
    let asked = (&headers, &extensions);
    let session = signer(&native, &args, Operation::Read, asked).await?;
    download(&session, &args, &headers).await.map_err(IntoResponse::into_response)
}

/// Writes a file by a signed URL that names no sandbox.
pub(super) async fn write_signed(
    State(native): State<Native>,
    query: ArgsResult,
    request: Request,
) -> Result<Json<Vec<Value>>, Response> {
    let args = args(query).map_err(IntoResponse::into_response)?;
    let asked = (request.headers(), request.extensions());
    let session = signer(&native, &args, Operation::Write, asked).await?;
    store(&session, &args, request).await.map_err(IntoResponse::into_response)
}

/// The sandbox that a URL names, if the URL was signed with a token of it.
async fn signer(
    native: &Native,
    args: &Args,
    operation: Operation,
    asked: (&HeaderMap, &Extensions),
) -> Result<Session, Response> {
    let named = args.sandbox_id.as_deref().or_else(|| asked.0.get("e2b-sandbox-id")?.to_str().ok());
    let Some(sandbox) = named.and_then(|id| id.parse::<SandboxId>().ok()) else {
        let what = "no sandbox given; add `sandbox_id` to the query or send the E2b-Sandbox-Id header";
        return Err(RestError::new(StatusCode::UNAUTHORIZED, what).into_response());
    };
    let checked = args.check(native, &sandbox, operation, asked).await;
    let prefix = checked.map_err(IntoResponse::into_response)?;
    Ok(session_of(native, sandbox, asked.1).await?.with_token_of(prefix))
}

async fn download(session: &Session, args: &Args, headers: &HeaderMap) -> RestResult<Response> {
    let user = session.user_named(args.username.clone()).await?;
    let given = args.path.as_deref().filter(|path| !path.is_empty());
    let path = user
        .absolute(given.ok_or_else(|| RestError::bad_request("`path` is missing; give the path of a file"))?);
    let uri = paths::file(&session.sandbox, &path);
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
    let user = session.user_named(args.username.clone()).await?;
    upload::store(session, &user, args.path.as_deref().filter(|path| !path.is_empty()), request)
        .await
        .map(Json)
}
