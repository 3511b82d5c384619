//! Processes: the guest owns them, the host only watches.
//!
//! ```text
//!            spawn (worker)
//! Running ----------------------------------> Exited(draining) --> Settled --> forgotten
//!    |  output -> ring -> attached readers       |  what is readable  |  kept for late readers,
//!    +- timeout: cgroup.kill                     +- at most a pipe    +- bounded by count, bytes and age
//! ```
//!
//! Invariants:
//! - A process ends when its main process ends, even if something that it left behind holds its pipes open.
//! - Its remaining children continue, keep their control group, and their output still lands in the ring.
//! - Timeouts and SIGKILL reach everything in the control group.
//! - A disconnected follower has some time to reconnect, during which the process blocks rather
//!   than lose output.
//!
//! Out of scope: streams to the host (`server`), permission to start processes (the host).

mod cgroup;
mod clone;
mod input;
mod output;
mod ring;
mod spawn;
mod table;
mod terminal;
mod user;
mod wait;

pub(crate) use cgroup::UserCgroup;
pub(crate) use clone::{ChildPlan, spawn as spawn_child};
pub(crate) use input::{Caller, InputEntry, InputProgress};
pub(crate) use spawn::{SpawnContext, SpawnedChild, spawn_process};
pub(crate) use table::{OutputHold, Process, ProcessTable};
pub(crate) use user::User;
pub(crate) use wait::wait_child;
