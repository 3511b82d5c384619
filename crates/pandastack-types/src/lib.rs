//! Types shared by the servers, the agent and the clients.
//!
//! Typed ids, the public API's requests and responses ([`api`]), the private API between control
//! and agents ([`agent_api`]) with its signatures ([`link`]), error codes, and the sandbox state
//! machine ([`state`]). Pure: no I/O and no clock; callers pass in the time.

#![forbid(unsafe_code)]

pub mod agent_api;
pub mod api;
pub mod api_key;
pub mod audit;
pub mod check;
pub mod domains;
mod error;
mod failure;
pub mod grant;
pub mod guests;
pub mod host_header;
pub mod host_identity;
mod id;
pub mod image;
mod invalid_value;
mod language;
pub mod limits;
pub mod link;
pub mod network;
mod owner;
pub mod preview;
pub mod secret_ring;
pub mod sse;
pub mod state;

pub use error::{ErrorBody, ErrorCode};
pub use failure::{Cause, Error, Result, chain};
pub use id::{
    AppId, BuildId, DatabaseId, DeploymentId, FunctionId, HostId, ID_CHARS, IdError, MemberId, RunId,
    SandboxId, ScheduleId, ScheduleRunId, SnapshotId, TemplateId, TreeId, VolumeId, WebhookId, WorkspaceId,
};
pub use invalid_value::InvalidValue;
pub use language::Language;
pub use owner::{Owner, OwnerError};
pub use state::{Residency, SandboxState, Transition, TransitionRefused};
