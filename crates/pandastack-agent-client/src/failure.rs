//! Converts a failed agent call into the error of its operation.

use pandastack_types::{Error, ErrorCode};

use crate::AgentError;

impl From<AgentError> for Error {
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
