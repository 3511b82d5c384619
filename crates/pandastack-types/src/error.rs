//! Error codes: stable names with one HTTP status each, and the body that carries them.
//!
//! The documentation of a code is its row in `docs/reference/errors.md`: `cargo xtask errors` reads the
//! meaning and, after `Next step:`, what to do. Links are relative to that page.

use serde::{Deserialize, Serialize};

/// Response body of a failed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// Human-readable message, in one sentence.
    pub error: String,
    /// Stable error code.
    pub code: ErrorCode,
    /// Request ID, as in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Template build to wait for, with the code `template_baking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $status:literal,)*) => {
        /// Error code.
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
    /// The request is malformed, or a value is out of range.
    ///
    /// Next step: fix the value that the message names; see [limits](limits.md).
    BadRequest = 400,
    /// The API key is missing or invalid.
    ///
    /// Next step: check `PANDASTACK_API_KEY` or `~/.config/pandastack/config.json`.
    Unauthorized = 401,
    /// The API key does not have the required role.
    ///
    /// Next step: use a key with the role that the message names.
    Forbidden = 403,
    /// The operator suspended the workspace of the API key. Nothing in it is lost.
    ///
    /// Next step: ask the operator of this installation; see [Workspaces](../how-to/manage-workspaces.md).
    WorkspaceSuspended = 403,
    /// The sandbox, app, database or other resource does not exist.
    ///
    /// Next step: check the id or name.
    NotFound = 404,
    /// The file does not exist in the sandbox.
    ///
    /// Next step: check the path.
    FileNotFound = 404,
    /// The route does not support this HTTP method.
    ///
    /// Next step: check the method.
    MethodNotAllowed = 405,
    /// The request body did not arrive in time.
    ///
    /// Next step: send the request again, and its body without delay.
    RequestTimeout = 408,
    /// The current state of the resource does not allow this.
    ///
    /// Next step: follow the message; if another operation is in progress, retry.
    Conflict = 409,
    /// The snapshot is damaged, it was made by an engine that this host does not have, or its state is
    /// older than the operator allows.
    ///
    /// Next step: see [Upgrade](../how-to/upgrade.md#upgrade-qemu) and
    /// [Keep frozen state current](../how-to/keep-frozen-state-current.md).
    SnapshotUnusable = 409,
    /// The `Idempotency-Key` was used for another request, or its request is still in progress.
    ///
    /// Next step: use a new key, or wait.
    IdempotencyConflict = 409,
    /// The sandbox's machine was lost.
    ///
    /// Next step: delete the sandbox and create another.
    SandboxFailed = 409,
    /// The body exceeds its limit.
    ///
    /// Next step: send less; see [limits](limits.md).
    BodyTooLarge = 413,
    /// The range is outside the file.
    ///
    /// Next step: check the file's size.
    RangeNotSatisfiable = 416,
    /// A quota or limit of the workspace is reached.
    ///
    /// Next step: delete something, or raise the quota; do not retry.
    QuotaExceeded = 429,
    /// Too many requests, invalid credentials, unfinished request bodies or calls waiting for a function, or
    /// too much unread output; the message names the limit.
    ///
    /// Next step: retry after `Retry-After`.
    RateLimited = 429,
    /// The server failed.
    ///
    /// Next step: search the server's log for the request id, and report the problem.
    Internal = 500,
    /// This server does not offer this feature.
    ///
    /// Next step: ask its operator to enable it, if the message names an option.
    NotImplemented = 501,
    /// The guest, or the server inside it, did not respond properly.
    ///
    /// Next step: check the sandbox's logs.
    GuestUnavailable = 502,
    /// Nothing listens on the port, or only on `127.0.0.1`.
    ///
    /// Next step: listen on `0.0.0.0`.
    PortClosed = 502,
    /// No host is reachable or has room; the sandbox, app or function is at a limit (processes, watches,
    /// connections, requests in progress, unread input); or it did not wake in time or stopped before it
    /// responded.
    ///
    /// Next step: retry after `Retry-After`.
    NoCapacity = 503,
    /// The template is being built; the body has its `build_id`.
    ///
    /// Next step: retry after `Retry-After`.
    TemplateBaking = 503,
    /// The template could not be built.
    ///
    /// Next step: read the build's log.
    TemplateFailed = 500,
    /// The sandbox's host is not responding.
    ///
    /// Next step: retry after `Retry-After`.
    HostUnreachable = 503,
    /// The server, or a part of it, is starting, stopping or not responding.
    ///
    /// Next step: retry after `Retry-After`.
    Unavailable = 503,
    /// The command exceeded its timeout and was killed.
    ///
    /// Next step: raise `timeout_seconds`, or run it in the background.
    ExecTimeout = 504,
    /// The host's disk is full.
    ///
    /// Next step: free space, or add a host.
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
