//! Extractors of the control plane: the caller's key and the parameter of a path.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use pandastack_types::{SandboxId, api_key};

use crate::error::{RestError, RestResult};
use crate::gate::address_of;
use crate::native::{Caller, Identity, Native};

/// The native API with the request's API key. The key is checked here, before a body is read; the native API
/// checks it with each call.
pub(super) struct Authenticated(pub(super) Caller);

impl FromRequestParts<Native> for Authenticated {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, native: &Native) -> RestResult<Self> {
        let presented = presented_key(&parts.headers)?.ok_or_else(|| {
            let what = "`X-API-Key` is missing; set E2B_API_KEY to an API key of this server (`pds_...`)";
            RestError::new(StatusCode::UNAUTHORIZED, what)
        })?;
        let key = api_key::canonical(presented).into_owned();
        native.directory.check_key(&key, address_of(&parts.extensions)).await?;
        Ok(Authenticated(native.caller(Identity::Key(key), &parts.extensions)))
    }
}

/// The key in `X-API-Key`, else the bearer. Refuses headers with different ones: which of them counts would
/// be a guess.
fn presented_key(headers: &HeaderMap) -> RestResult<Option<&str>> {
    let all = |name: &'static str| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut keys = all("x-api-key").map(str::trim);
    let bearer = || all(header::AUTHORIZATION.as_str()).find_map(|value| value.strip_prefix("Bearer "));
    match keys.next() {
        Some(first) if keys.all(|key| key == first) => Ok(Some(first)),
        Some(_) => {
            let what = "the request has different `X-API-Key` headers; send one";
            Err(RestError::new(StatusCode::UNAUTHORIZED, what))
        }
        None => Ok(bearer().map(str::trim)),
    }
}

/// The sandbox id in a path. An invalid id gives the same error as a sandbox that does not exist.
pub(super) struct SandboxPath(pub(super) SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for SandboxPath {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        let text = path_param(parts, state).await?;
        text.parse().map(SandboxPath).map_err(|_| sandbox_not_found(&text))
    }
}

/// The first parameter of a path, decoded after the path was split.
pub(super) struct PathParam(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathParam {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        path_param(parts, state).await.map(PathParam)
    }
}

async fn path_param<S: Send + Sync>(parts: &mut Parts, state: &S) -> RestResult<String> {
    let malformed = |_| RestError::bad_request("the request URL is malformed");
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(malformed)?;
    Ok(params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default())
}

/// The error of a call on a sandbox that does not exist.
pub(super) fn sandbox_not_found(text: &str) -> RestError {
    let shown: String = text.chars().take(80).collect();
    RestError::new(StatusCode::NOT_FOUND, format!("sandbox `{shown}` not found"))
}
