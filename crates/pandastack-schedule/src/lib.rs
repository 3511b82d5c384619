//! Computes when schedules run.
//!
//! Owns: reading cron expressions, time zones and intervals ([`Timing`]); due, missed and coalesced
//! instants at a given time ([`due`]); whether a run may start while others are in progress
//! ([`admit`]); jitter and back-off ([`jitter`], [`backoff`]).
//!
//! Must hold: everything is a pure function of its arguments, so that tests can use a virtual
//! clock; every instant is found by walking forward with [`Timing::next_after`], so that previews,
//! firings and missed instants agree.
//!
//! Callers provide the clock, keep records, and run targets.

#![forbid(unsafe_code)]

mod backoff;
mod due;
mod jitter;
mod overlap;
mod timing;

pub use backoff::{BACKOFF_SECONDS_MAX, backoff};
pub use due::{Due, MISSED_COUNT_MAX, MissedPolicy, due};
pub use jitter::jitter;
pub use overlap::{Admission, admit};
pub use timing::{Timing, TimingError};
