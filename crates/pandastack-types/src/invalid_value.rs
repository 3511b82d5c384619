//! The error of values that are written as text.

/// An invalid value of a type, with the valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(String);

impl InvalidValue {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl From<InvalidValue> for String {
    fn from(error: InvalidValue) -> String {
        error.0
    }
}
