//! The error of every operation: one code, one sentence for the user, and the cause for the log only.
//!
//! The error is independent of HTTP: the REST layer turns it into a response.

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

    /// The error for an id that does not exist.
    pub fn not_found(what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(80).collect();
        Self::new(ErrorCode::NotFound, format!("{what} `{shown}` not found"))
    }

    /// The error for a request that the resource's state does not allow.
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
        self.cause.as_deref().map(|cause| chain(cause)).unwrap_or_default()
    }
}

/// The text of an error and of its causes, joined by colons.
///
/// None of our texts repeats its cause, so a text alone describes the failure without the reason.
/// Errors of other crates sometimes repeat it; their causes are omitted.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let next = cause.to_string();
        if !last.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        last = next;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    fn link(text: &'static str, cause: Option<Link>) -> Link {
        Link { text, cause: cause.map(Box::new) }
    }

    #[test]
    fn an_error_chain_repeats_no_text() {
        let full = link("disk full", None);
        assert_eq!(chain(&full), "disk full");
        let written = link("cannot write x", Some(full));
        assert_eq!(chain(&written), "cannot write x: disk full");
        let repeating = link("cannot start: cannot write x", Some(written));
        assert_eq!(chain(&repeating), "cannot start: cannot write x: disk full");
    }

    #[test]
    fn error_causes_are_only_logged() {
        let error = Error::internal(link("cannot write /srv/x", Some(link("disk full", None))));
        assert_eq!(error.causes(), "cannot write /srv/x: disk full");
        assert!(!error.message.contains("/srv"), "{}", error.message);
    }
}
