//! An [`AgentError`] as an answer: the status of its code, and the body of [`ErrorBody`].
//!
//! Control is the only reader. A fault of the host keeps its text with the code `internal`: control
//! logs it and returns its own client without it. `pandastack-rest` does the same for control; this
//! module does not use it, because it depends on the agent client.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pandastack_types::{ErrorBody, ErrorCode, chain};

use crate::error::AgentError;

impl IntoResponse for AgentError {
    fn into_response(self) -> Response {
        let code = self.code();
        if let AgentError::Damaged { path, reason } = &self {
            tracing::error!(path = %path.display(), reason, "a damaged file");
        }
        let public = self.logged_public_text();
        let error = if code == ErrorCode::Internal { chain(&self) } else { public };
        let build_id = match &self {
            AgentError::TemplateBaking { build, .. } => Some(build.to_string()),
            _ => None,
        };
        let body = ErrorBody { error, code, request_id: None, build_id };
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(body)).into_response();
        if let Some(seconds) = code.retry_after_seconds() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
