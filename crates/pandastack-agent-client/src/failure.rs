//! A failed call to an agent as the error of the operation that made it.

use pandastack_types::{Error, ErrorCode};

use crate::AgentError;

impl From<AgentError> for Error {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        match error {
            AgentError::Answered { body, retry_after, .. } => {
                Self { retry_after, build_id: body.build_id, ..Self::new(body.code, message) }
            }
            AgentError::BodyTooLarge => Self::new(ErrorCode::BodyTooLarge, message),
            AgentError::Unreachable { .. } | AgentError::Address { .. } => {
                Self { cause: Some(error.into()), ..Self::new(ErrorCode::HostUnreachable, message) }
            }
            AgentError::Broken { .. } | AgentError::Late { .. } | AgentError::Nonsense { .. } => {
                Self { cause: Some(error.into()), ..Self::new(ErrorCode::GuestUnavailable, message) }
            }
        }
    }
}
