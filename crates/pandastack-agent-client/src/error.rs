//! Errors of calls to an agent.

use std::time::Duration;

use pandastack_types::{ErrorBody, HostId};

pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The request cannot be written as HTTP; nothing was sent.
    #[error("cannot build a request to host `{host}`")]
    InvalidRequest {
        /// The host.
        host: HostId,
        /// Reason.
        #[source]
        source: Cause,
    },
    /// The agent could not be reached, and nothing was sent.
    #[error("host `{host}` is unreachable; its sandboxes keep running and return with it")]
    Unreachable {
        /// The host.
        host: HostId,
        /// Why; none if the host has not reported.
        #[source]
        source: Option<Cause>,
    },
    /// The request was sent, and the connection ended before the response.
    #[error("lost the connection to host `{host}` during a call; the call may have taken effect")]
    ConnectionLost {
        /// The host.
        host: HostId,
        /// Reason.
        #[source]
        source: Cause,
    },
    /// The request was sent, but no response arrived in time.
    #[error("host `{host}` did not respond within {} s; the call may have taken effect", .wait.as_secs())]
    Timeout {
        /// The host.
        host: HostId,
        /// The time limit.
        wait: Duration,
    },
    /// The response is not valid for the call.
    #[error("host `{host}` sent a response that this server cannot read; check that their versions match")]
    BadResponse {
        /// The host.
        host: HostId,
        /// Reason why it is invalid.
        #[source]
        source: Cause,
    },
    /// The agent refused the call or failed; the body has the reason.
    #[error("{}", .body.error)]
    Answered {
        /// Status of the response.
        status: u16,
        /// The error body.
        body: Box<ErrorBody>,
        /// Seconds after which to try again.
        retry_after: Option<u32>,
    },
    /// The client's body is longer than allowed.
    #[error("the body is larger than {} bytes", pandastack_types::limits::FILE_BODY_BYTES_MAX)]
    BodyTooLarge,
    /// The host reported an address that cannot be used.
    #[error("host `{host}` reported the address `{address}`; expected unix:/path or https://address:port")]
    Address {
        /// The host.
        host: HostId,
        /// The reported address.
        address: String,
    },
}

impl AgentError {
    /// Returns whether the agent answered "not found".
    pub fn is_absent(&self) -> bool {
        matches!(self, AgentError::Answered { status: 404, .. })
    }
}
