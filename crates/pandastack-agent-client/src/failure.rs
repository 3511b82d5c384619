//! Converts a failed agent call into the error of its operation.
//!
//! A failure of the host names its files. That is for the log: the caller gets the plain internal error.

use pandastack_types::{Error, ErrorCode};

use crate::AgentError;

impl From<AgentError> for Error {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        match error {
            AgentError::Answered { ref body, .. } if body.code == ErrorCode::Internal => {
                Self::internal(error)
            }
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

#[cfg(test)]
mod tests {
    use pandastack_types::ErrorBody;

    use super::*;

    fn answered(code: ErrorCode, text: &str) -> Error {
        let body = ErrorBody { error: text.to_owned(), code, request_id: None, build_id: None };
        AgentError::Answered { status: code.status(), body: Box::new(body), retry_after: None }.into()
    }

    #[test]
    fn host_error_details_are_only_logged() {
        let text = "write /srv/pandastack/sandboxes/x/record.json: permission denied";
        let error = answered(ErrorCode::Internal, text);
        assert_eq!((error.code, error.causes().as_str()), (ErrorCode::Internal, text));
        assert_eq!(error.message, Error::internal(text).message);
    }

    #[test]
    fn an_agent_refusal_is_forwarded() {
        let error = answered(ErrorCode::Conflict, "the sandbox is asleep");
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::Conflict, "the sandbox is asleep"));
    }
}
