//! The Firecracker engine: microVMs on KVM, one jailed process per machine.
//!
//! ```text
//!   FirecrackerEngine --start--> jailer --exec--> firecracker (own user, own root, own namespaces)
//!       |                                            |  api.sock     HTTP calls             (api)
//!       +---adopt----------------------------------> |  v.sock       vsock of the guest     (guest)
//!                                                    |  disk, volume0.., memory, state      (root)
//! ```
//!
//! Firecracker writes disk paths into snapshots, and a snapshot must load in any jail. So every
//! machine sees its files under the same constant names ([`root`]). The jail's root is a tmpfs in the
//! process's own mount namespace: the kernel removes it when the process ends, even if the agent is
//! gone by then.
//!
//! A process can be started ahead and wait for its machine ([`empty`]): to spawn and jail one takes longer
//! than to load a snapshot into it.
//!
//! Invariants:
//! - A process runs as its own user in its own namespaces and sees only its own files.
//! - Guest memory is a private mapping of a file that is mounted read-only, so no machine can change
//!   pages that others share.
//! - Every API call ends in an answer, a deadline or the exit of the process, and the error says
//!   which.
//!
//! Left to others: cloning disks and memory files, network namespaces, cgroups, keeping records.

mod api;
mod config;
mod devices;
mod empty;
mod engine;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod guest;
pub mod install;
mod limits;
mod machine;
mod probe;
mod root;
mod save;
mod socket;
mod spawn;
mod start;
mod tap;
mod version;

pub use api::{Api, ApiError, types};
pub use config::{FirecrackerConfig, Launcher};
pub use engine::FirecrackerEngine;
