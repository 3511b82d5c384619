//! Why a call failed, and what its caller can do about it.

use std::path::PathBuf;
use std::time::Duration;

use pandastack_types::ErrorCode;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither the environment nor the configuration file holds a key.
    #[error("no API key is configured")]
    NoKey,
    /// The configuration file cannot be used.
    #[error("the client configuration {path} cannot be used: {detail}", path = .path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The server's address is not one.
    #[error("`{url}` is not the address of a PandaStack server: {detail}")]
    BadUrl {
        /// What was configured.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Nobody answers there.
    #[error("cannot reach PandaStack at {url}: {detail}")]
    Unreachable {
        /// The server.
        url: String,
        /// The innermost cause.
        detail: String,
    },
    /// The server answered with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Stable name of the kind of failure; empty when the answer had none.
        code: String,
        /// The server's sentence.
        message: String,
        /// Names the request in the server's log.
        request_id: Option<String>,
        /// The template build to wait for.
        build_id: Option<String>,
        /// How long the server asks to wait before trying again.
        retry_after: Option<Duration>,
    },
    /// The answer is not what the API promises.
    #[error("the answer to {call} is not understood: {detail}")]
    BadAnswer {
        /// Method and path.
        call: String,
        /// What is wrong with it.
        detail: String,
    },
    /// An event stream ended without its closing event.
    #[error("the stream of {call} broke off: {detail}")]
    Interrupted {
        /// Method and path.
        call: String,
        /// What was seen last.
        detail: String,
    },
    /// Nothing came back in time.
    #[error("no answer to {call} within {limit_seconds} s")]
    Deadline {
        /// Method and path.
        call: String,
        /// The limit.
        limit_seconds: u64,
    },
    /// A file on this side.
    #[error("{action} {path}: {reason}", path = .path.display())]
    LocalFile {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        reason: std::io::Error,
    },
}

impl ClientError {
    /// What to do next, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ClientError::NoKey => vec![
                "`pandastack up` starts a server on this machine and writes ~/.config/pandastack/config.json"
                    .into(),
                "for a server elsewhere set PANDASTACK_API_URL and PANDASTACK_API_KEY".into(),
            ],
            ClientError::BadConfig { .. } => {
                vec!["it must be a JSON object with `api_url` and `token`; remove it to have `pandastack up` write it".into()]
            }
            ClientError::BadUrl { .. } => vec!["an address looks like http://127.0.0.1:8080".into()],
            ClientError::Unreachable { .. } => vec![
                "start a server on this machine with `pandastack up`".into(),
                "or set PANDASTACK_API_URL to the server you mean".into(),
            ],
            ClientError::Refused { .. } => self.refusal_hints(),
            ClientError::Deadline { .. } | ClientError::Interrupted { .. } => {
                vec!["`pandastack host list` shows whether the hosts answer".into()]
            }
            ClientError::BadAnswer { .. } => {
                vec!["check that PANDASTACK_API_URL names a PandaStack server of this version".into()]
            }
            ClientError::LocalFile { .. } => Vec::new(),
        }
    }

    fn refusal_hints(&self) -> Vec<String> {
        let ClientError::Refused { code, request_id, status, .. } = self else { return Vec::new() };
        let mut hints = Vec::new();
        let is = |known: ErrorCode| *code == known.as_str();
        if is(ErrorCode::Unauthorized) {
            hints.push(
                "set PANDASTACK_API_KEY, or run `pandastack up` again to renew the configuration".to_owned(),
            );
        } else if code.is_empty() {
            // Our own errors always have a code: this is a proxy's answer, or another program's.
            hints.push("check that PANDASTACK_API_URL names a PandaStack server".to_owned());
        } else if is(ErrorCode::TemplateBaking) {
            hints.push("`pandastack template build NAME` shows its progress".to_owned());
        } else if is(ErrorCode::NoCapacity) || is(ErrorCode::HostUnreachable) {
            hints.push("`pandastack host list` shows what the hosts have free".to_owned());
        } else if is(ErrorCode::DiskFull) {
            hints.push("remove snapshots and sandboxes, or give the data directory more room".to_owned());
        }
        if let (true, Some(id)) = (*status >= 500, request_id) {
            hints.push(format!("the server's log has more under request {id}"));
        }
        hints
    }

    /// Whether it may be over in a moment: the server was not reached, or broke off, or is starting again.
    pub fn is_passing(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Interrupted { .. } => true,
            ClientError::Refused { status, .. } => matches!(status, 502 | 503),
            _ => false,
        }
    }

    /// Whether the server said that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }

    /// Whether this is that kind of refusal.
    pub fn is_code(&self, wanted: ErrorCode) -> bool {
        matches!(self, ClientError::Refused { code, .. } if *code == wanted.as_str())
    }
}

/// The innermost cause: the outer layers of an HTTP client's error only repeat the address.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
