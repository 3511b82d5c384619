//! Converts a domain error to an HTTP response: the status of its code, and the body of [`ErrorBody`].
//!
//! The request id is filled in by [`crate::request_id`], which alone knows it; that is why the
//! error also travels in the response's extensions.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use pandastack_types::{Error, ErrorBody};

/// Result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

/// A failed call, as the client sees it. Handlers, extractors and layers return it; everything below them
/// returns [`Error`].
#[derive(Debug)]
pub struct ApiError(pub Error);

impl<E: Into<Error>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// Data with which [`crate::request_id`] completes an error response.
#[derive(Clone)]
pub(crate) struct Failure {
    pub(crate) body: ErrorBody,
    pub(crate) causes: String,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let causes = error.causes();
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body =
            ErrorBody { error: error.message, code: error.code, request_id: None, build_id: error.build_id };
        let mut response = (status, Json(&body)).into_response();
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Failure { body, causes });
        response
    }
}
