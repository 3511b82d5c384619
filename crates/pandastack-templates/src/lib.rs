//! Templates that workspaces make: Dockerfiles built step by step in machines, snapshots that are
//! published, versions and tags.
//!
//! ```text
//!   create (waiting) --> files into a context machine --> start (queued) --> runner: a few at once
//!                                                                             |
//!      stage: FROM --> step --> step ...   each step a command in a builder machine, its result a snapshot
//!                        |                 under a key of all that it depends on
//!                        +--> start command, ready check --> the version: a snapshot with its configuration
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `routes`, `build_routes`, `catalogue`, `view` | the API; the platform's own templates are the hosts' |
//! | `service` | the service's state, and work in progress of this process |
//! | `ops` | creating, starting, cancelling, publishing, tagging and deleting |
//! | `sharing` | templates that other workspaces may use |
//! | `runner` | scheduling; recovery after a crash |
//! | `rebuild`, `changes`, `packages` | builds that repeat a version, and what they changed |
//! | `build`, `stages`, `stage`, `step`, `copy` | one build: its stages, and its instructions |
//! | `base`, `image` | the base that a `FROM` names; images, which machines fetch and unpack |
//! | `plan`, `scope`, `key` | steps in one form; variables and configuration; keys of layers. Pure |
//! | `machines`, `context` | builder machines, and the machine that holds the files of a build |
//! | `mounts`, `binds`, `secrets` | what a step finds while it runs, and is in no layer |
//! | `debug` | the machine of a failed step, kept for the user |
//! | `ready` | when a start command is ready |
//! | `log`, `build_error` | logs and errors of builds |
//! | `prune` | deleting unneeded layers, versions and snapshots |
//!
//! Must hold: all code of a build runs in machines, never on a host or a server; files of a build
//! stream through and are never stored here; a build that fails, is cancelled or loses its server
//! leaves no machine; layers belong to one workspace.

#![forbid(unsafe_code)]

mod base;
mod binds;
mod build;
mod build_error;
pub mod build_routes;
pub mod catalogue;
mod changes;
mod context;
mod copy;
mod debug;
mod image;
mod key;
mod log;
mod machines;
mod mounts;
mod ops;
mod packages;
mod plan;
mod prune;
mod ready;
pub mod rebuild;
pub mod routes;
pub mod runner;
mod scope;
mod secrets;
mod service;
mod sharing;
mod stage;
mod stages;
mod step;
mod view;

pub use ops::delete_all;
pub use service::Templates;

/// Targets for `cargo xtask fuzz`, which see private parsers.
#[cfg(feature = "fuzz")]
pub mod fuzz {
    /// The status file of dpkg.
    pub fn dpkg_status(bytes: &[u8]) {
        crate::packages::fuzz(bytes);
    }
}
