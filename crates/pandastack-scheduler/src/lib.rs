//! Schedules: cron, intervals and one-off times that call HTTP and apps, run commands, move sandboxes, invoke
//! functions, run SQL or rebuild templates.
//!
//! ```text
//!   routes --> ops --> store <-- dispatcher.step(now) --> runner --> http | app | command | sandbox | services
//!                        ^            |
//!                 wake --+            +-- sleeps on the wall clock until the next thing to do (timer)
//! ```
//!
//! Owns: when runs are due, who runs them, how often they are retried, and their records.
//! `pandastack_schedule` decides when; the store ensures that each instant is decided once.
//!
//! Must hold: all state is in the store, so a `kill -9` at any point loses no run: a run that had
//! begun is retried as its next attempt. A schedule drives sandboxes through the same operations as
//! the public API.
//!
//! Out of scope: functions, databases and templates, which are reached through [`Services`].

#![forbid(unsafe_code)]

mod activity;
mod alert;
mod app_target;
mod attempt;
mod background;
mod dispatcher;
mod http_target;
mod ops;
pub mod routes;
mod runner;
mod scheduler;
mod services;
mod spec;
mod timer;

#[cfg(test)]
mod tests;

pub use attempt::Attempt;
pub use background::run;
pub use ops::delete_all;
pub use scheduler::Scheduler;
pub use services::{CalledApp, Services};
