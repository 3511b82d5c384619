//! The private API between control and agents. Every request is signed ([`crate::link`]).
//!
//! Control and edges call an agent under [`PREFIX`]. [`endpoints`] describes every call once:
//! method, path, query, request and response. The agent registers its handlers by these types and
//! `pandastack-agent-client` takes values of them, so that a path or a body that does not fit the
//! other side does not compile.
//!
//! Must hold:
//! - A call on a sandbox carries the sandbox's incarnation in [`INCARNATION_HEADER`]. The agent
//!   refuses a stale one with 409.
//! - An error response has the public [`crate::ErrorBody`].
//! - Control and agents of different versions work together: a described path, parameter or field
//!   is never given another meaning, and unknown parameters are ignored.
//!
//! Agents and edges call control at the paths in [`internal`]. An agent reports every [`REPORT_SECONDS`]
//! and after every change. Reports are complete, so a lost report is made good by the next. A connection
//! of a machine to [`crate::network::DATABASES_ADDRESS`] becomes a call of [`internal::DATABASES`]; control
//! decides which databases the machine may reach.

mod edge;
mod endpoint;
pub mod endpoints;
mod frozen;
mod host;
pub mod internal;
mod join;
mod query;
mod sandbox;
mod volume;

pub use edge::{EdgeName, EdgeRoute, NAMES_CHANGED};
pub use endpoint::{
    BadParameter, Bytes, Created, Description, Empty, Endpoint, Events, GrantProtocol, Json, JsonResponse,
    JsonStream, MediaType, Method, OctetStream, OnSandbox, OrEvents, PREFIX, PassThrough, PlainText,
    Protocol, StreamResponse, Tar, TunnelProtocol, Upgrade, WebSocketProtocol,
};
pub use frozen::{
    Components, EngineVersion, FrozenSandbox, FrozenSnapshot, FrozenTemplate, GuestVersion, HostFrozen,
    OutdatedVerdict, OutdatedVerdicts,
};
pub use host::{
    AgentDenial, AgentTemplate, EgressLimit, HostReport, MigrationOffer, ReportAnswer, TemplateInfo,
};
pub use join::{CertificateRequest, IssuedCertificate, JoinRequest};
pub use query::{
    BuildQuery, ExecQuery, ExecStreamQuery, FindFilesQuery, Flag, GrantQuery, GrepFilesQuery,
    ListDirectoryQuery, LogQuery, MakeDirectoryQuery, NoQuery, OutputEncoding, OutputQuery, PathQuery,
    RemoveFileQuery, StartProcessQuery, StdinQuery, StreamQuery, TerminalQuery, TunnelQuery, UnpackQuery,
    WaitProcessQuery, WatchFilesQuery, WriteFileQuery, parse_query,
};
pub use sandbox::{
    AgentCreate, AgentFork, AgentForked, AgentKeepAwake, AgentPatch, AgentRollback, AgentSandbox,
    AgentSnapshot, AgentSnapshotDone, ChildOutcome, MachineSize, SandboxSpec, Source, Usage,
};
pub use volume::{AgentVolume, AgentVolumeCreate, AgentVolumeGrow, VolumeSpec};

/// Protocol of a stream that a machine opened to its databases.
pub const DATABASE_UPGRADE: &str = "pandastack-database";
/// Header with the incarnation of the sandbox that a call means.
pub const INCARNATION_HEADER: &str = "x-pandastack-incarnation";
/// Header with the id of the client's request that a call belongs to.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Header of an event stream that names the process it is of.
pub const PROCESS_HEADER: &str = "x-pandastack-process";
/// Header of the event stream of a process that was just started: the kernel's process id inside the sandbox.
pub const PID_HEADER: &str = "x-pandastack-pid";
/// Header of a file's content: the size of the whole file.
pub const FILE_SIZE_HEADER: &str = "x-pandastack-file-size";
/// Header with the last event that a client has seen of an event stream; the stream continues after it.
pub const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// Longest time between two reports of an agent.
pub const REPORT_SECONDS: u64 = 5;
/// Time without a report after which a host is shown as unreachable.
pub const HOST_LOST_SECONDS: u64 = 20;
