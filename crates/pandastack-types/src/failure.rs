//! The error of every operation: one code, one sentence for the user, and the cause for the log only.
//!
//! It knows nothing of HTTP: the REST layer turns it into an answer.

use crate::ErrorCode;

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of a failed operation.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Kind of failure.
    pub code: ErrorCode,
    /// Message for the user.
    pub message: String,
    /// Seconds after which trying again may help.
    pub retry_after: Option<u32>,
    /// The template build to watch.
    pub build_id: Option<String>,
    /// For the log; never part of the message.
    #[source]
    pub cause: Option<Cause>,
}

impl Error {
    /// An error of a kind, with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retry_after = code.retry_after_seconds();
        Self { code, message: message.into(), retry_after, build_id: None, cause: None }
    }

    /// The request is malformed or a value is out of range.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// Nothing has this id.
    pub fn not_found(what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(80).collect();
        Self::new(ErrorCode::NotFound, format!("{what} `{shown}` not found"))
    }

    /// The state of the thing does not allow this.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    /// The server failed. The user sees no cause; the log does.
    pub fn internal(cause: impl Into<Cause>) -> Self {
        let message = "internal server error; search the server's log for this request id";
        Self { cause: Some(cause.into()), ..Self::new(ErrorCode::Internal, message) }
    }

    /// The cause and its causes, for the log.
    pub fn causes(&self) -> String {
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
