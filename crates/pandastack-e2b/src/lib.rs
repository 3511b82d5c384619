//! The E2B protocol, so that E2B's unmodified clients work with this platform.
//!
//! ```text
//!   e2b client --X-API-Key-->       control plane routes --+
//!   e2b client --E2b-Sandbox-Id-->  port 49983: envd ------+--> native API, in process --> agents
//!                                   port 49999: interpreter+
//! ```
//!
//! This crate owns the wire of those clients: paths, bodies, error forms, the Connect protocol, signed file URLs, the
//! interpreter's line protocol. It owns no state and makes no decision: every call becomes calls of the native API
//! ([`Native`]), so that keys, scopes, rates, limits, the audit log and idempotency are the platform's own. The one
//! credential it adds, a sandbox's access token, is derived and never stored ([`token`]).
//!
//! Must hold: a client never gets an error in the native format, because it cannot parse it;
//! unsupported options are refused with a message, never ignored where that would weaken isolation
//! or lose data.
//!
//! Out of scope: other ports of a sandbox (the edge), and everything behind the native API.

#![forbid(unsafe_code)]

mod control;
mod cors;
mod envd;
mod error;
mod gate;
mod interpreter;
mod limits;
mod native;
mod native_paths;
mod ports;
mod sandbox_state;
mod session;
mod sse;
mod token;
mod user;

use std::sync::Arc;

use axum::Router;
use pandastack_types::link::LinkKey;

use native::Native;
pub use native::{Access, DelegatedAccess, Directory, DirectoryUnavailable, FoundSandbox};
pub use ports::{ENVD_PORT, INTERPRETER_PORT, PORTS};

/// Both sides of the translation.
#[derive(Clone)]
pub struct Facade {
    native: Native,
}

impl Facade {
    /// Over the native API's routes, with the join secret that access tokens are derived from.
    pub fn new(api: Router, directory: Arc<dyn Directory>, link: &LinkKey) -> Self {
        Self { native: Native::new(api, directory, link) }
    }

    /// Routes of the control plane, to be served beside the native ones.
    pub fn control_plane(&self) -> Router {
        control::routes(self.native.clone(), envd::signed_files())
    }

    /// Router for [`PORTS`]. Requests carry a [`pandastack_edge::Target`].
    pub fn sandbox_ports(&self) -> Router {
        let (envd, interpreter) =
            (envd::routes(self.native.clone()), interpreter::routes(self.native.clone()));
        ports::routes(self.native.clone(), envd, interpreter)
    }
}
