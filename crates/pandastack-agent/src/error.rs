//! Errors of an agent. [`crate::http`] converts them to responses.

use std::path::{Path, PathBuf};

use pandastack_engine::EngineError;
use pandastack_guest_proto::client::ClientError;
use pandastack_guest_proto::message::ErrorCode as GuestCode;
use pandastack_types::{BuildId, ErrorCode, SandboxId, SnapshotId, TransitionRefused, VolumeId, chain};

use crate::budget::OverBudget;

/// Result of an agent operation.
pub(crate) type Result<T, E = AgentError> = std::result::Result<T, E>;

/// Reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("{0}")]
    BadRequest(String),
    #[error("sandbox {0} not found on this host")]
    NoSandbox(SandboxId),
    #[error("process {0} not found in this sandbox; ended processes are kept for a few minutes")]
    NoProcess(u64),
    #[error("snapshot {0} not found on this host")]
    NoSnapshot(SnapshotId),
    #[error("volume {0} not found on this host")]
    NoVolume(VolumeId),
    #[error("{0}")]
    NoSpace(String),
    #[error("template `{0}` not found; `pandastack template list` shows all templates")]
    NoTemplate(String),
    #[error("build {0} not found")]
    NoBuild(BuildId),
    #[error("{0}")]
    TooLarge(String),
    #[error("range `{range}` is outside the file, which has {size} bytes")]
    BadRange { range: String, size: u64 },
    #[error("{0}")]
    Conflict(String),
    #[error("template `{name}` is being built ({phase}); try again shortly")]
    TemplateBaking { name: String, phase: String, build: BuildId },
    #[error("template `{name}` could not be built: {reason}")]
    TemplateFailed { name: String, reason: String },
    #[error("{0}")]
    NoCapacity(String),
    #[error("the sandbox failed: {0}; create a new one")]
    Failed(String),
    #[error(transparent)]
    Guest(#[from] ClientError),
    #[error("{0}")]
    Launch(String),
    #[error("nothing listens on port {0} of the sandbox")]
    PortClosed(u16),
    #[error("the command was killed by its timeout of {seconds} s")]
    ExecTimeout { seconds: u64 },
    #[error(transparent)]
    Unauthorized(#[from] crate::link::Refused),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] pandastack_image::StoreError),
    #[error(transparent)]
    Image(#[from] pandastack_image::ImageError),
    #[error(transparent)]
    Net(#[from] pandastack_net::NetError),
    #[error("{action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    // Only the file's name: the rest of the path is internal to the host. The log has the full
    // path.
    #[error("the file `{}` is damaged: {reason}; roll back to another snapshot, or create a new sandbox",
        path.file_name().unwrap_or_default().display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{0}")]
    Incompatible(String),
    #[error("{0}")]
    Outdated(String),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    #[error("cannot encode the answer")]
    Encode(#[from] serde_json::Error),
    #[error("the agent is stopping")]
    Stopping,
}

impl From<TransitionRefused> for AgentError {
    fn from(refused: TransitionRefused) -> Self {
        AgentError::Conflict(refused.to_string())
    }
}

impl AgentError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| AgentError::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl std::fmt::Display) -> Self {
        AgentError::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }

    /// The connection to the guest was lost.
    pub(crate) fn is_disconnection(&self) -> bool {
        matches!(self, AgentError::Guest(ClientError::Disconnected { .. }))
    }

    /// Text for tenants: a refusal with its causes; of the host's own faults only the kind. Their
    /// full texts name the host's paths and are only logged.
    pub(crate) fn public_text(&self) -> String {
        if !self.is_of_host() {
            return chain(self);
        }
        let text = match self.code() {
            ErrorCode::DiskFull => {
                "disk full: the host has no space left; delete sandboxes or snapshots, or ask its operator"
            }
            ErrorCode::NoCapacity => "the host has no network slot ready; try again shortly",
            _ if matches!(self, AgentError::Engine(EngineError::Exited(_))) => {
                "the machine's process ended; its agent's log has the reason"
            }
            _ => "internal error of the host; its agent's log has the cause",
        };
        text.to_owned()
    }

    /// Like [`Self::public_text`], but logs the omitted details.
    pub(crate) fn logged_public_text(&self) -> String {
        if self.is_of_host() {
            tracing::error!(error = %chain(self), "the host failed");
        }
        self.public_text()
    }

    /// Returns whether the error is a fault of the host, whose text names its files and interfaces.
    pub(crate) fn is_of_host(&self) -> bool {
        match self {
            // Written for users: the step that took too long, and what the host lacks.
            AgentError::Engine(EngineError::Deadline { .. } | EngineError::Unavailable(_)) => false,
            AgentError::Engine(_) | AgentError::Store(_) | AgentError::Image(_) | AgentError::Io { .. } => {
                true
            }
            AgentError::Net(error) => !matches!(error, pandastack_net::NetError::Exhausted { .. }),
            _ => false,
        }
    }

    /// The stable code, and with it the status.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            AgentError::BadRequest(_) => ErrorCode::BadRequest,
            AgentError::TooLarge(_) => ErrorCode::BodyTooLarge,
            AgentError::BadRange { .. } => ErrorCode::RangeNotSatisfiable,
            AgentError::NoSandbox(_)
            | AgentError::NoProcess(_)
            | AgentError::NoSnapshot(_)
            | AgentError::NoVolume(_)
            | AgentError::NoTemplate(_)
            | AgentError::NoBuild(_) => ErrorCode::NotFound,
            AgentError::Conflict(_) => ErrorCode::Conflict,
            AgentError::NoSpace(_) => ErrorCode::DiskFull,
            AgentError::Failed(_) => ErrorCode::SandboxFailed,
            AgentError::Damaged { .. } | AgentError::Incompatible(_) | AgentError::Outdated(_) => {
                ErrorCode::SnapshotUnusable
            }
            AgentError::TemplateBaking { .. } => ErrorCode::TemplateBaking,
            AgentError::TemplateFailed { .. } => ErrorCode::TemplateFailed,
            AgentError::NoCapacity(_) => ErrorCode::NoCapacity,
            AgentError::Guest(error) => guest_code(error),
            AgentError::Launch(_) => ErrorCode::GuestUnavailable,
            AgentError::PortClosed(_) => ErrorCode::PortClosed,
            AgentError::ExecTimeout { .. } => ErrorCode::ExecTimeout,
            AgentError::Unauthorized(_) => ErrorCode::Unauthorized,
            AgentError::OverBudget(OverBudget::Sandbox | OverBudget::Workspace) => ErrorCode::RateLimited,
            AgentError::Stopping | AgentError::OverBudget(OverBudget::Host) => ErrorCode::Unavailable,
            AgentError::Encode(_) => ErrorCode::Internal,
            AgentError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                ErrorCode::DiskFull
            }
            AgentError::Engine(EngineError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                ErrorCode::DiskFull
            }
            AgentError::Store(error) if error.kind() == pandastack_image::StoreErrorKind::NoSpace => {
                ErrorCode::DiskFull
            }
            AgentError::Image(error) if error.kind() == pandastack_image::ErrorKind::NoSpace => {
                ErrorCode::DiskFull
            }
            AgentError::Net(error) if error.is_capacity() => ErrorCode::NoCapacity,
            AgentError::Engine(_)
            | AgentError::Store(_)
            | AgentError::Image(_)
            | AgentError::Net(_)
            | AgentError::Io { .. } => ErrorCode::Internal,
        }
    }
}

/// A refusal of the guest is the caller's business; anything else means that the guest cannot be talked to.
fn guest_code(error: &ClientError) -> ErrorCode {
    match error.refusal() {
        Some(GuestCode::NotFound) => ErrorCode::FileNotFound,
        Some(GuestCode::AlreadyExists | GuestCode::NotEmpty | GuestCode::Frozen) => ErrorCode::Conflict,
        Some(GuestCode::NoSpace) => ErrorCode::DiskFull,
        Some(GuestCode::TooMany) => ErrorCode::NoCapacity,
        Some(_) => ErrorCode::BadRequest,
        None => match error {
            ClientError::RequestTooLong { .. }
            | ClientError::TooLong { .. }
            | ClientError::FileTooLong { .. } => ErrorCode::BadRequest,
            ClientError::TooManyCalls { .. } => ErrorCode::NoCapacity,
            _ => ErrorCode::GuestUnavailable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(kind: std::io::ErrorKind) -> AgentError {
        AgentError::io("write", Path::new("/srv/pandastack/x"))(kind.into())
    }

    #[test]
    fn public_errors_contain_no_host_paths() {
        let store = pandastack_image::StoreError::NoSpace {
            path: "/srv/pandastack/store".into(),
            available_bytes: 1,
            needed_bytes: 2,
        };
        for (error, code) in [
            (io(std::io::ErrorKind::PermissionDenied), ErrorCode::Internal),
            (io(std::io::ErrorKind::StorageFull), ErrorCode::DiskFull),
            (store.into(), ErrorCode::DiskFull),
        ] {
            assert_eq!(error.code(), code);
            assert!(chain(&error).contains("/srv/pandastack"), "{}", chain(&error));
            let public = error.public_text();
            assert!(!public.contains("/srv") && !public.contains("denied"), "{public}");
        }
    }

    #[test]
    fn public_errors_name_missing_software_but_no_machine_log() {
        let lacks =
            AgentError::from(EngineError::Unavailable("the engine is not installed: run x".to_owned()));
        assert_eq!(lacks.public_text(), "the engine is not installed: run x");
        let ended = AgentError::from(EngineError::Exited("killed; its log: /srv/x".to_owned()));
        assert!(!ended.public_text().contains("/srv"), "{}", ended.public_text());
        assert!(ended.public_text().contains("process ended"), "{}", ended.public_text());
    }

    #[test]
    fn an_error_message_does_not_repeat_its_cause() {
        let error = io(std::io::ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "write /srv/pandastack/x");
        assert_eq!(chain(&error), "write /srv/pandastack/x: permission denied");
    }
}
