//! Supervises control and agent as child processes of `up`.
//!
//! Owns the two child processes, the names that distinguish installations on one machine ([`addresses`]),
//! the lock that allows one `up` per data directory ([`lock`]), the join secret ([`secret`]) and the user
//! that control and edges run as ([`service_user`]). Machines
//! are not children of `up`: they belong to the agent and outlive it, and the next agent adopts them.
//! Nothing here stops a machine.
//!
//! ```text
//!            start                       exits                  backoff over
//!  (none) ----------> running ------------------> waiting ------------------> running
//!                        |                           |
//!                        +----------- stop ----------+---> stopped (SIGTERM, deadline, SIGKILL)
//! ```
//!
//! The standard input of every child is a pipe whose write end `up` holds. A child stops when the
//! pipe closes, so it never outlives `up`, not even after `kill -9`.

pub mod addresses;
pub mod descriptors;
pub mod lock;
mod role;
pub mod secret;
pub mod service_user;

pub use role::{Role, RoleEvent, Supervisor, stop_requested};
