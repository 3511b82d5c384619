//! Errors of calls to a guest.

use std::time::Duration;

use crate::frame::FrameError;
use crate::message::{ErrorBody, ErrorCode};

/// Reason why a call to a guest failed. Cheap to clone, since one lost connection fails many calls.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection is lost; reconnect and resume at the last seen offsets.
    #[error("the connection to the guest was lost: {reason}; connect again")]
    Disconnected {
        /// Reason.
        reason: String,
    },
    /// The guest did not answer the handshake in time.
    #[error("the guest did not respond within {waited:?}; it may still be booting, or be stopped")]
    ConnectDeadline {
        /// The time limit.
        waited: Duration,
    },
    /// The guest broke the protocol and was disconnected.
    #[error("the guest violated the protocol: {0}")]
    Protocol(String),
    /// The guest's bytes were not frames.
    #[error("the guest violated the protocol")]
    Frame(#[from] FrameError),
    /// The guest is older than this program supports.
    #[error(
        "the guest uses protocol generation {guest}, but the oldest supported is {oldest}; rebuild its template"
    )]
    Generation {
        /// The guest's.
        guest: u32,
        /// Ours.
        oldest: u32,
    },
    /// The guest refused the call.
    #[error("{0}")]
    Refused(ErrorBody),
    /// Too many calls are open on this connection.
    #[error("more than {max} calls are in flight on one guest connection; wait for some to finish")]
    TooManyCalls {
        /// The limit.
        max: usize,
    },
    /// The request does not fit in a frame.
    #[error(
        "the request has {bytes} bytes, and the limit is {max}; send large content as a file or as standard input"
    )]
    RequestTooLong {
        /// Length of the request.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The guest sent a longer listing than the host keeps.
    #[error("the listing has more than {items_max} entries or {bytes_max} bytes; list a smaller directory")]
    TooLong {
        /// The limit of entries.
        items_max: usize,
        /// The limit of bytes.
        bytes_max: usize,
    },
    /// The file is longer than the caller wanted in memory.
    #[error("the file is longer than {bytes_max} bytes; stream it instead")]
    FileTooLong {
        /// The limit.
        bytes_max: u64,
    },
    /// The host could not make a nonce.
    #[error("the host returned no random numbers: {0}")]
    Random(String),
}

/// The kind of a failure; decides status codes, retries and metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The machine cannot be talked to now.
    Unreachable,
    /// The guest misbehaves; the machine cannot be trusted to serve.
    GuestFault,
    /// The guest refused; the code has the reason.
    Refused(ErrorCode),
    /// The request exceeds a limit.
    Limit,
}

impl ClientError {
    /// Kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disconnected { .. } | Self::ConnectDeadline { .. } | Self::Random(_) => {
                ErrorKind::Unreachable
            }
            Self::Protocol(_) | Self::Frame(_) | Self::Generation { .. } => ErrorKind::GuestFault,
            Self::Refused(body) => ErrorKind::Refused(body.code),
            Self::TooManyCalls { .. }
            | Self::RequestTooLong { .. }
            | Self::TooLong { .. }
            | Self::FileTooLong { .. } => ErrorKind::Limit,
        }
    }

    /// The guest's refusal code, if it is one.
    #[must_use]
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(body) => Some(body.code),
            _ => None,
        }
    }

    pub(super) fn disconnected(reason: impl std::fmt::Display) -> Self {
        Self::Disconnected { reason: reason.to_string() }
    }
}
