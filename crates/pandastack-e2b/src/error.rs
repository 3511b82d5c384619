//! Errors in the three formats of E2B's clients.
//!
//! | where | form |
//! |---|---|
//! | control plane, `/files` | `{"code": <status>, "message"}` ([`RestError`]) |
//! | Connect | `{"code": "<name>", "message"}` ([`RpcError`]), in a stream inside its last frame |
//! | a missing sandbox | `{"sandboxId", "message", "code"}` with 502 ([`SandboxGone`]) |

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use pandastack_types::{ErrorCode, SandboxId};
use serde_json::json;

use crate::native::{DirectoryUnavailable, NativeError};

/// A failed call of the control plane or of `/files`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RestError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) retry_after: Option<HeaderValue>,
}

pub(crate) type RestResult<T> = Result<T, RestError>;

impl RestError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The request's body did not arrive within [`BODY_WAIT`](crate::limits::BODY_WAIT).
    pub(crate) fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time; send it again")
    }

    /// An error for a feature that this server does not support.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            format!("{what} not supported by this server; see docs/reference/e2b-compatibility.md"),
        )
    }
}

impl From<NativeError> for RestError {
    fn from(error: NativeError) -> Self {
        Self { status: error.status, message: error.message, retry_after: error.retry_after }
    }
}

impl From<pandastack_types::Error> for RestError {
    fn from(error: pandastack_types::Error) -> Self {
        if error.code == ErrorCode::Internal {
            tracing::error!(%error, causes = error.causes(), "cannot check an API key");
        }
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, message: error.message, retry_after: error.retry_after.map(HeaderValue::from) }
    }
}

impl From<DirectoryUnavailable> for RestError {
    fn from(error: DirectoryUnavailable) -> Self {
        tracing::warn!(cause = %error.0, "cannot look up a sandbox");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.status.as_u16(), "message": self.message });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// Connect's names of failures that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RpcCode {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    Internal,
    Unimplemented,
    Unavailable,
    DeadlineExceeded,
}

impl RpcCode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RpcCode::InvalidArgument => "invalid_argument",
            RpcCode::Unauthenticated => "unauthenticated",
            RpcCode::PermissionDenied => "permission_denied",
            RpcCode::NotFound => "not_found",
            RpcCode::AlreadyExists => "already_exists",
            RpcCode::FailedPrecondition => "failed_precondition",
            RpcCode::ResourceExhausted => "resource_exhausted",
            RpcCode::Internal => "internal",
            RpcCode::Unimplemented => "unimplemented",
            RpcCode::Unavailable => "unavailable",
            RpcCode::DeadlineExceeded => "deadline_exceeded",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            RpcCode::InvalidArgument | RpcCode::FailedPrecondition => StatusCode::BAD_REQUEST,
            RpcCode::Unauthenticated => StatusCode::UNAUTHORIZED,
            RpcCode::PermissionDenied => StatusCode::FORBIDDEN,
            RpcCode::NotFound => StatusCode::NOT_FOUND,
            RpcCode::AlreadyExists => StatusCode::CONFLICT,
            RpcCode::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            RpcCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            RpcCode::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            RpcCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RpcCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn of(status: StatusCode, code: Option<ErrorCode>) -> Self {
        match (status.as_u16(), code) {
            (_, Some(ErrorCode::SandboxFailed)) => RpcCode::Unavailable,
            (400 | 405 | 416, _) => RpcCode::InvalidArgument,
            (401, _) => RpcCode::Unauthenticated,
            (403, _) => RpcCode::PermissionDenied,
            (404, _) => RpcCode::NotFound,
            (409, _) => RpcCode::FailedPrecondition,
            (413 | 429 | 507, _) => RpcCode::ResourceExhausted,
            (501, _) => RpcCode::Unimplemented,
            (502 | 503, _) => RpcCode::Unavailable,
            (504, _) => RpcCode::DeadlineExceeded,
            _ => RpcCode::Internal,
        }
    }
}

/// A failed call over Connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RpcError {
    pub(crate) code: RpcCode,
    pub(crate) message: String,
}

pub(crate) type RpcResult<T> = Result<T, RpcError>;

impl RpcError {
    pub(crate) fn new(code: RpcCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(RpcCode::InvalidArgument, message)
    }

    /// The error in a response body, or in the last frame of a stream.
    pub(crate) fn json(&self) -> serde_json::Value {
        json!({ "code": self.code.as_str(), "message": self.message })
    }
}

impl From<NativeError> for RpcError {
    fn from(error: NativeError) -> Self {
        Self::new(RpcCode::of(error.status, error.code), error.message)
    }
}

impl From<RestError> for RpcError {
    fn from(error: RestError) -> Self {
        Self::new(RpcCode::of(error.status, None), error.message)
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        (self.code.status(), Json(self.json())).into_response()
    }
}

/// A sandbox that accepts no requests: unknown, deleted, or paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxGone {
    pub(crate) sandbox: SandboxId,
    pub(crate) reason: &'static str,
}

impl IntoResponse for SandboxGone {
    fn into_response(self) -> Response {
        let status = StatusCode::BAD_GATEWAY;
        // Clients match this wording.
        let message = format!("The sandbox was not found: {}", self.reason);
        let body = json!({ "sandboxId": self.sandbox, "message": message, "code": status.as_u16() });
        (status, Json(body)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_errors_map_to_matching_rpc_codes() {
        for (status, name) in [
            (400, "invalid_argument"),
            (401, "unauthenticated"),
            (404, "not_found"),
            (413, "resource_exhausted"),
            (500, "internal"),
            (503, "unavailable"),
            (504, "deadline_exceeded"),
            (507, "resource_exhausted"),
        ] {
            let error = NativeError::new(StatusCode::from_u16(status).unwrap(), "x");
            assert_eq!(RpcError::from(error).code.as_str(), name, "{status}");
        }
    }

    #[test]
    fn a_gone_sandbox_returns_502() {
        let gone = SandboxGone { sandbox: SandboxId::random(), reason: "it is paused" };
        assert_eq!(gone.into_response().status(), 502);
    }
}
