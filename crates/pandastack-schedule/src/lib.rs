//! Computes when schedules run.
//!
//! Owns: reading cron expressions, time zones and intervals ([`Timing`]); which instants are due, missed or coalesced at
//! a given time ([`due`]); whether a run may begin beside others ([`admit`]); jitter and back-off ([`jitter`],
//! [`backoff`]).
//!
//! Must hold: everything is a pure function of its arguments, so that a virtual clock proves it; every instant is found by
//! walking forward with [`Timing::next_after`], so that what a preview shows, what fires and what was missed agree.
//!
//! Left to others: the clock, keeping records, and running anything.

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
