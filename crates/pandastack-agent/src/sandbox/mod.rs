//! One driver task per sandbox.
//!
//! Everything that changes a sandbox goes through its bounded queue and is done in order, so
//! impossible pairs (fork while deleting, wake while snapshotting) cannot happen. A hundred
//! requests to a sleeping sandbox wake it once: the first one wakes it, the others find it awake. Using the
//! guest does not occupy the driver: a [`handle::GuestLease`] is a handle to the guest that works beside
//! it. Once the pause is over, writes of a snapshot and children of a fork also proceed beside the driver.
//!
//! ```text
//!   http handlers --Command--> queue --> driver --watch--> view (state, usage)
//!                                          |
//!                    machine exit, idle timer, shutdown of the agent
//! ```

mod accept;
mod activity;
mod capture;
mod children;
mod create;
mod driver;
mod end;
mod fork;
mod freeze;
mod grants;
pub(crate) mod handle;
mod idle;
mod lease;
mod network;
mod rollback;
mod sleep;
mod usage;
mod view;
mod volumes;

pub(crate) use accept::Request;
pub(crate) use activity::ActivityGuard;
pub(crate) use create::create;
pub(crate) use driver::spawn;
pub(crate) use grants::EdgeGrant;
