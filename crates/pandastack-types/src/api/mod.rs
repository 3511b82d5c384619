//! Requests and responses of the public API under `/v1`.
//!
//! The shapes are the ones that the published clients send and read; fields beyond those are additions of ours.
//! Unknown request fields are ignored, absent ones have defaults, and no response field that a client computes with is
//! ever `null`.

mod account;
mod command;
mod preview;
mod sandbox;
mod snapshot;
mod template;

pub use account::{CreateToken, Host, Me, Scope, TokenCreated, TokenInfo, Version};
pub use command::{
    DirectoryListing, ExecRequest, ExecResult, FileEntry, FileWritten, RenameFile, RunRequest, RunResult,
};
pub use preview::{Preview, SetPreview, SignPreview, SignedPreview};
pub use sandbox::{
    CreateSandbox, Event, EventList, Items, Lifecycle, Metadata, OnTimeout, PatchLifecycle, Port, PortList,
    Sandbox, StatusAnswer,
};
pub use snapshot::{
    CreateSnapshot, ForkError, ForkSandbox, ForkTree, ForkTreeResult, Promote, Promoted, Snapshot,
    SnapshotList,
};
pub use template::{Build, BuildStatus, Template, TemplateStatus};
