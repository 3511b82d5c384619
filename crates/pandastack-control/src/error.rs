//! Every failure a client can see: one code, one sentence, and the cause for the log only.
//!
//! [`ApiError`] turns into the response with the body of [`pandastack_types::ErrorBody`]. The request id is filled in
//! by [`crate::request_id`], which alone knows it; that is why the error also travels in the response's extensions.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use pandastack_types::{ErrorBody, ErrorCode};

use crate::placement::PlacementRefused;
use crate::store::StoreError;
use pandastack_agent_client::AgentError;

/// Result of a handler.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    /// Kind; decides status, log level and metric label.
    pub code: ErrorCode,
    /// What the user reads.
    pub message: String,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
    /// The template build to watch.
    pub build_id: Option<String>,
    /// For the log.
    #[source]
    pub cause: Option<Cause>,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retry_after = code.retry_after_seconds();
        Self { code, message: message.into(), retry_after, build_id: None, cause: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(80).collect();
        Self::new(ErrorCode::NotFound, format!("there is no {what} `{shown}`"))
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    pub(crate) fn internal(cause: impl Into<Cause>) -> Self {
        let message = "the server failed; its log has the cause under this request id";
        Self { cause: Some(cause.into()), ..Self::new(ErrorCode::Internal, message) }
    }

    /// Status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The cause and its causes, for the log.
    pub(crate) fn causes(&self) -> String {
        let mut text = String::new();
        let mut next = self.cause.as_deref().map(|cause| cause as &dyn std::error::Error);
        while let Some(error) = next {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }
}

/// What [`crate::request_id`] needs to finish an error response.
#[derive(Clone)]
pub(crate) struct Failure {
    pub(crate) body: ErrorBody,
    pub(crate) causes: String,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let causes = self.causes();
        let (status, retry_after) = (self.status(), self.retry_after);
        let body =
            ErrorBody { error: self.message, code: self.code, request_id: None, build_id: self.build_id };
        let mut response = (status, Json(&body)).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Failure { body, causes });
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NotFound { .. } => ErrorCode::NotFound,
            StoreError::Refused(_)
            | StoreError::LastToken(_)
            | StoreError::Exists { .. }
            | StoreError::Held(_) => ErrorCode::Conflict,
            StoreError::Quota { .. } | StoreError::OverQuota { .. } => ErrorCode::QuotaExceeded,
            StoreError::DiskFull => ErrorCode::DiskFull,
            StoreError::Corrupt { .. } | StoreError::Database(_) | StoreError::Migrate(_) => {
                return Self::internal(error);
            }
        };
        Self::new(code, error.to_string())
    }
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        match error {
            AgentError::Answered { body, retry_after, .. } => {
                Self { retry_after, build_id: body.build_id, ..Self::new(body.code, message) }
            }
            AgentError::InvalidRequest { .. } => Self::internal(error),
            AgentError::BodyTooLarge => Self::new(ErrorCode::BodyTooLarge, message),
            AgentError::Unreachable { .. } | AgentError::Address { .. } => {
                Self { cause: Some(error.into()), ..Self::new(ErrorCode::HostUnreachable, message) }
            }
            AgentError::ConnectionLost { .. }
            | AgentError::Timeout { .. }
            | AgentError::BadResponse { .. } => {
                Self { cause: Some(error.into()), ..Self::new(ErrorCode::GuestUnavailable, message) }
            }
        }
    }
}

impl From<PlacementRefused> for ApiError {
    fn from(refused: PlacementRefused) -> Self {
        let code = match refused {
            PlacementRefused::UnknownTemplate(_) => ErrorCode::NotFound,
            PlacementRefused::NoHosts | PlacementRefused::Full { .. } => ErrorCode::NoCapacity,
        };
        Self::new(code, refused.to_string())
    }
}
