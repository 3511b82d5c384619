//! The function service: each call runs in a machine forked with its handler loaded.
//!
//! ```text
//!   deploy --> bundle --> build --> version = snapshot          (once)
//!   call   --> routes, url, queue --> invoke --> pool --> connection --> runtime in a machine made of that snapshot
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `bundle`, `zip_bundle`, `requirements` | uploads, their checks, their dependencies |
//! | `build` | making a version |
//! | `settings` | settings and their bounds |
//! | `functions`, `versions`, `background` | shared state; choice of the version; background work |
//! | `function_cache` | recently called functions |
//! | `pool` | machines of a version, the queue of calls |
//! | `connection` | frames to and from the runtime in a machine |
//! | `invoke`, `tail`, `logs` | a call, its record, its output |
//! | `queue`, `dead_letters` | calls of type `Event`: stored, retried, dead-lettered, redriven |
//! | `url` | calls over a function's own host name |
//! | `local` | a function as plain processes of its developer's machine |
//! | `router`, `lookup`, `routes`, `deploy_routes`, `call_routes`, `view` | the API |
//!
//! Invariants: versions never change; a call that was acknowledged as queued is made according to
//! its retry policy, even after a `kill -9`; one call's timeout, crash or output harms no other
//! call; machines and snapshots of functions belong to them (`function:<id>`) and are deleted with
//! them.
//!
//! Out of scope: creating and deleting machines and snapshots
//! ([`pandastack_sandboxes::machines::Machines`]), the runtime API inside the machine (the guest
//! program's `function`), schedules.

#![forbid(unsafe_code)]

mod background;
mod build;
mod bundle;
pub mod call_routes;
mod connection;
mod core;
mod dead_letters;
pub mod deploy_routes;
mod function_cache;
mod functions;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod invoke;
mod local;
pub mod logs;
mod lookup;
mod pool;
mod queue;
mod requirements;
mod router;
pub mod routes;
mod settings;
mod tail;
mod url;
mod versions;
mod view;
mod zip_bundle;

pub use background::{prune_runs, run};
pub use functions::Functions;
pub use local::{LocalError, LocalFunction, LocalRuntime, local_router};
pub use lookup::{FunctionPath, find_in};
pub use router::{once_only, repeatable};
pub use url::{by_host, is_named};
pub use versions::version_for;
