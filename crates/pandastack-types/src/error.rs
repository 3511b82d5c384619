//! Error codes: stable names with one HTTP status each, and the body that carries them.

use serde::{Deserialize, Serialize};

/// Body of every failed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// One sentence that a user can act on.
    pub error: String,
    /// Stable name of the kind of failure.
    pub code: ErrorCode,
    /// Names this request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The template build to watch, with `template_baking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $status:literal,)*) => {
        /// Kinds of failure.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $($(#[$doc])* $variant,)* }

        impl ErrorCode {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// HTTP status of the answer that carries it.
            pub fn status(self) -> u16 {
                match self { $(ErrorCode::$variant => $status,)* }
            }
        }
    };
}

error_codes! {
    /// The request is malformed or a value is out of range.
    BadRequest = 400,
    /// No key, or one that is not known.
    Unauthorized = 401,
    /// The key may not do this.
    Forbidden = 403,
    /// There is no such thing.
    NotFound = 404,
    /// No such file in the sandbox.
    FileNotFound = 404,
    /// The route exists, the method does not.
    MethodNotAllowed = 405,
    /// The thing is in a state that does not allow this.
    Conflict = 409,
    /// The snapshot is damaged, or was made by an engine that this host does not have.
    SnapshotUnusable = 409,
    /// An `Idempotency-Key` was used for another request, or its request is still running.
    IdempotencyConflict = 409,
    /// The sandbox's machine is gone; make another sandbox.
    SandboxFailed = 409,
    /// The body is larger than its limit.
    BodyTooLarge = 413,
    /// The range has nothing of the file.
    RangeNotSatisfiable = 416,
    /// A quota is used up.
    QuotaExceeded = 429,
    /// Too many requests.
    RateLimited = 429,
    /// A fault of ours.
    Internal = 500,
    /// This server does not have this service yet.
    NotImplemented = 501,
    /// The guest answered nonsense or not at all.
    GuestUnavailable = 502,
    /// Nothing listens on this port of the sandbox, or only inside it.
    PortClosed = 502,
    /// No host can take the sandbox now.
    NoCapacity = 503,
    /// The template is being built; try again.
    TemplateBaking = 503,
    /// The template could not be built.
    TemplateFailed = 500,
    /// The host of this sandbox does not answer.
    HostUnreachable = 503,
    /// The server is starting or stopping.
    Unavailable = 503,
    /// The command ran past its timeout and was killed.
    ExecTimeout = 504,
    /// The host's disk is full.
    DiskFull = 507,
}

impl ErrorCode {
    /// The name in JSON.
    pub fn as_str(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// Seconds for `Retry-After`, where trying again may help and nothing was created.
    pub fn retry_after_seconds(self) -> Option<u32> {
        match self {
            ErrorCode::NoCapacity | ErrorCode::Unavailable => Some(5),
            ErrorCode::TemplateBaking => Some(10),
            ErrorCode::HostUnreachable => Some(15),
            ErrorCode::RateLimited => Some(1),
            _ => None,
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_stable_names_and_error_statuses() {
        assert_eq!(ErrorCode::TemplateBaking.as_str(), "template_baking");
        for code in ErrorCode::ALL {
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(!code.as_str().is_empty());
        }
    }

    #[test]
    fn a_quota_refusal_never_invites_a_retry() {
        assert_eq!(ErrorCode::QuotaExceeded.retry_after_seconds(), None);
    }
}
