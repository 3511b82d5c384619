//! The error of values that are written as text.

/// Why a text is not a value of a type, with the values that are.
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
