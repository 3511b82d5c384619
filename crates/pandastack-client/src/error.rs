//! Errors of calls, with hints on what to do next.

use std::path::PathBuf;
use std::time::Duration;

use pandastack_types::ErrorCode;

/// Result of a call.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither the environment nor the configuration file holds a key.
    #[error("no API key configured")]
    NoKey,
    /// The configuration file is invalid.
    #[error("invalid client configuration {path}: {detail}", path = .path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// Reason why it is invalid.
        detail: String,
    },
    /// The server URL is invalid.
    #[error("invalid server URL `{url}`: {detail}")]
    BadUrl {
        /// The configured URL.
        url: String,
        /// Reason why it is invalid.
        detail: String,
    },
    /// The server cannot be reached.
    #[error("cannot reach PandaStack at {url}: {detail}")]
    Unreachable {
        /// The server.
        url: String,
        /// The innermost cause.
        detail: String,
    },
    /// The server returned an error.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Stable error code; empty if the response had none.
        code: String,
        /// Error message of the server.
        message: String,
        /// Id of the request in the server's log.
        request_id: Option<String>,
        /// The template build to wait for.
        build_id: Option<String>,
        /// Delay before a retry, as requested by the server.
        retry_after: Option<Duration>,
    },
    /// The response does not match the API.
    #[error("invalid response to {call}: {detail}")]
    BadResponse {
        /// Method and path.
        call: String,
        /// Reason why it is invalid.
        detail: String,
    },
    /// An event stream ended without its closing event.
    #[error("the stream of {call} was interrupted: {detail}")]
    Interrupted {
        /// Method and path.
        call: String,
        /// Description of the failure.
        detail: String,
    },
    /// The call timed out.
    #[error("{call} timed out after {limit_seconds} s")]
    Deadline {
        /// Method and path.
        call: String,
        /// The timeout.
        limit_seconds: u64,
    },
}

impl ClientError {
    /// Hints on what to do next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ClientError::NoKey => vec![
                "run `pandastack up` to start a server here and write ~/.config/pandastack/config.json"
                    .into(),
                "to use another server, run `pandastack login URL`, or set PANDASTACK_API_URL and \
                 PANDASTACK_API_KEY"
                    .into(),
            ],
            ClientError::BadConfig { .. } => {
                vec!["fix the file, or remove it and run `pandastack up` to create it again".into()]
            }
            ClientError::BadUrl { .. } => vec!["use a URL such as http://127.0.0.1:8080".into()],
            ClientError::Unreachable { .. } => vec![
                "run `pandastack up` to start a server on this machine".into(),
                "to use another server, set PANDASTACK_API_URL".into(),
            ],
            ClientError::Refused { .. } => self.response_hints(),
            ClientError::Deadline { .. } | ClientError::Interrupted { .. } => {
                vec!["run `pandastack host list` to check whether the hosts are reachable".into()]
            }
            ClientError::BadResponse { .. } => {
                vec!["check that PANDASTACK_API_URL points to a PandaStack server of the same version".into()]
            }
        }
    }

    fn response_hints(&self) -> Vec<String> {
        let ClientError::Refused { code, request_id, status, .. } = self else { return Vec::new() };
        let mut hints = Vec::new();
        let is = |known: ErrorCode| *code == known.as_str();
        if is(ErrorCode::Unauthorized) {
            hints.push("set PANDASTACK_API_KEY to a valid key, or run `pandastack up` again".to_owned());
        } else if code.is_empty() {
            // PandaStack errors always have a code: this response is from a proxy or another program.
            hints.push("check that PANDASTACK_API_URL points to a PandaStack server".to_owned());
        } else if is(ErrorCode::TemplateBaking) {
            hints.push("run `pandastack template build NAME` to follow the build".to_owned());
        } else if is(ErrorCode::NoCapacity) || is(ErrorCode::HostUnreachable) {
            hints.push("run `pandastack host list` to see the free capacity of the hosts".to_owned());
        } else if is(ErrorCode::DiskFull) {
            hints.push("delete snapshots or sandboxes, or add disk space for the data directory".to_owned());
        }
        if let (true, Some(id)) = (*status >= 500, request_id) {
            hints.push(format!("search the server's log for request {id}"));
        }
        hints
    }

    /// Returns whether a retry may succeed: the server was unreachable, the stream was interrupted
    /// or the server is restarting.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Interrupted { .. } => true,
            ClientError::Refused { status, .. } => matches!(status, 502 | 503),
            _ => false,
        }
    }

    /// Returns whether the resource was not found.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }

    /// Returns whether the server returned this error code.
    pub fn is_code(&self, expected: ErrorCode) -> bool {
        matches!(self, ClientError::Refused { code, .. } if *code == expected.as_str())
    }
}

/// The innermost cause: the outer layers of an HTTP client error only repeat the URL.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
