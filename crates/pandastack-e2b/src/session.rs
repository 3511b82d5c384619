//! A request's sandbox, and the native API on its behalf.

use axum::extract::{Extension, FromRequestParts};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use pandastack_types::SandboxId;

use crate::error::{RestError, RestResult};
use crate::native::Caller;
use crate::user::{self, User};

/// A sandbox that accepts requests, and the native API on its behalf.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) sandbox: SandboxId,
    pub(crate) native: Caller,
    /// User of requests that name none, if the sandbox's template sets one.
    pub(crate) default_user: Option<String>,
}

impl Session {
    /// The same for a token issued for the key with this prefix.
    pub(crate) fn with_token_of(self, prefix: String) -> Self {
        Self { native: self.native.with_token_of(prefix), ..self }
    }

    /// The user that a request names.
    pub(crate) async fn user(&self, headers: &HeaderMap) -> RestResult<User> {
        self.user_named(user::named_by(headers)?).await
    }

    /// A user by name, or the default one.
    pub(crate) async fn user_named(&self, name: Option<String>) -> RestResult<User> {
        match (name, &self.default_user) {
            (None, Some(default)) => user::find_default(&self.native, &self.sandbox, default).await,
            (name, _) => user::find(&self.native, &self.sandbox, name).await,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Session {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        let found = Extension::<Session>::from_request_parts(parts, state).await;
        found.map(|Extension(session)| session).map_err(|_| no_sandbox_named())
    }
}

/// The request names no sandbox.
pub(crate) fn no_sandbox_named() -> RestError {
    RestError::new(
        StatusCode::NOT_FOUND,
        "this route needs a sandbox; name one in the host name or the E2b-Sandbox-Id header",
    )
}
