//! Who makes a request.

use axum::Extension;
use axum::extract::FromRequestParts;
use http::request::Parts;
use pandastack_types::api::Scope;
use pandastack_types::{Error, WorkspaceId};

use crate::{ApiError, ApiResult};

/// Who calls. Authentication puts it into the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Whose things the call is about.
    pub workspace: WorkspaceId,
    /// The public part of the API key.
    pub prefix: String,
    /// What the key is called.
    pub label: String,
    /// What the key may do.
    pub scope: Scope,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let caller = Extension::<Caller>::from_request_parts(parts, state).await;
        Ok(caller.map_err(Error::internal)?.0)
    }
}
