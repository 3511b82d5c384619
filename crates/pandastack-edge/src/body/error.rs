//! Errors of bodies that end early.

use crate::limits::BODY_BYTES_MAX;

/// Error of any body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The client sent more than allowed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the body is larger than {BODY_BYTES_MAX} bytes")]
pub struct BodyTooLarge;

/// The client stopped in the middle.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the client stopped sending the body")]
pub struct BodyStalled;
