//! The caller of a request: its key, workspace and role.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Extension;
use axum::extract::FromRequestParts;
use http::Extensions;
use http::request::Parts;
use pandastack_types::api::{Contents, Role};
use pandastack_types::{Error, ErrorCode, Result, WorkspaceId};
use tokio_util::sync::CancellationToken;

use crate::{ApiError, ApiResult};

/// The caller of a request. Authentication adds it to the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Workspace of the call.
    pub workspace: WorkspaceId,
    /// The public part of the API key.
    pub prefix: String,
    /// Label of the key.
    pub label: String,
    /// Role of the key in its workspace.
    pub role: Role,
    /// Whether the key may also manage the installation.
    pub operator: bool,
    /// Cancelled when the key is revoked or expires, and when its workspace is suspended or
    /// deleted. Connections that outlive the response, such as upgraded ones, end with it.
    pub revoked: Arc<CancellationToken>,
}

impl Caller {
    /// Refuses a key with a lesser role.
    pub fn require(&self, needed: Role) -> Result<()> {
        if self.role >= needed {
            return Ok(());
        }
        let (prefix, has) = (&self.prefix, self.role);
        let message = format!(
            "this request needs role `{needed}`, but key `{prefix}...` has `{has}`; \
             create a key with `pandastack token create --role {needed}`, using an owner key"
        );
        Err(Error::new(ErrorCode::Forbidden, message))
    }

    /// A value as the caller may see it: a viewer sees no contents.
    pub fn shown<T: Contents>(&self, mut value: T) -> T {
        if self.role < Role::Developer {
            value.mask();
        }
        value
    }

    /// Refuses every key but those of operators.
    pub fn require_operator(&self) -> Result<()> {
        if self.operator {
            return Ok(());
        }
        let message = format!(
            "this request needs an operator key, but `{}...` is not one; ask the operator of this \
             installation",
            self.prefix
        );
        Err(Error::new(ErrorCode::Forbidden, message))
    }
}

/// Checks callers of routes outside the API, such as functions at their own URLs.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Admits an `Authorization` header with a key of that workspace that has more than read
    /// access. The request's extensions hold the client's address.
    async fn check_key(&self, bearer: Option<&str>, workspace: &WorkspaceId, from: &Extensions)
    -> Result<()>;

    /// Refuses requests to a workspace that is suspended.
    async fn check_open(&self, workspace: &WorkspaceId) -> Result<()>;

    /// Admits one more request to that workspace, unless it is over its rate.
    fn check_rate(&self, workspace: &WorkspaceId) -> Result<()>;
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let caller = Extension::<Caller>::from_request_parts(parts, state).await;
        Ok(caller.map_err(Error::internal)?.0)
    }
}
