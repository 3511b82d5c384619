//! Running control and agent as processes of their own and keeping them running.
//!
//! Owns the two child processes of `up`, the lock that lets one `up` at a time have a data directory ([`lock`]) and
//! the join secret ([`secret`]). Machines are not children of `up`: they belong to the agent, outlive it, and are found
//! again by its successor, so nothing here ever ends one.
//!
//! ```text
//!            start                       exits                  backoff over
//!  (none) ----------> running ------------------> waiting ------------------> running
//!                        |                           |
//!                        +----------- stop ----------+---> stopped (SIGTERM, deadline, SIGKILL)
//! ```
//!
//! Every child holds the read end of a pipe as its standard input. The write end is ours, so a child learns that `up`
//! is gone, even by `kill -9`, and stops instead of staying behind without a supervisor.

pub mod descriptors;
pub mod lock;
mod role;
pub mod secret;

pub use role::{Role, RoleEvent, Supervisor, stop_requested};
