//! Computes due runs, and the action for missed ones.
//!
//! ```text
//!   cursor          missed                    newest      now
//!     |----*----*----*----*----*----*----*------*---------|
//!      skip:     the newest, if it is not too late
//!      run once: the newest, for all of them
//!      run all:  the last few, oldest first
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Timing;

/// Missed instants are counted up to this number; beyond it the count is "at least".
pub const MISSED_COUNT_MAX: u32 = 1_000;

/// First span that is searched backwards from now; it doubles until it holds enough instants or all
/// of them.
const FIRST_LOOK: SignedDuration = SignedDuration::from_mins(10);

/// Policy for runs that were missed during downtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedPolicy {
    /// Only the newest runs, and only if it is at most this late.
    Skip {
        /// Longest delay of a run.
        deadline: Duration,
    },
    /// The newest runs.
    RunOnce,
    /// The newest `max` run.
    RunAll {
        /// Number of runs.
        max: u32,
    },
}

/// The runs that are due at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Instants that get a run, oldest first.
    pub runs: Vec<Timestamp>,
    /// The newest instant that is due; everything up to it is decided.
    pub newest: Timestamp,
    /// Number of instants that get no run, counted up to [`MISSED_COUNT_MAX`].
    pub missed: u32,
    /// The next instant.
    pub next: Option<Timestamp>,
}

/// Runs that are due in (`cursor`, `now`]; `None` when there are none.
pub fn due(timing: &Timing, cursor: Timestamp, now: Timestamp, policy: MissedPolicy) -> Option<Due> {
    let instants = last_instants(timing, cursor, now, MISSED_COUNT_MAX as usize);
    let newest = *instants.back()?;
    let late = Duration::try_from(now.duration_since(newest)).unwrap_or(Duration::ZERO);
    let runs = match policy {
        MissedPolicy::Skip { deadline } => usize::from(late <= deadline),
        MissedPolicy::RunOnce => 1,
        MissedPolicy::RunAll { max } => instants.len().min(max.max(1) as usize),
    };
    let missed = instants.len() - runs;
    Some(Due {
        runs: instants.range(missed..).copied().collect(),
        newest,
        missed: u32::try_from(missed).unwrap_or(u32::MAX),
        next: timing.next_after(newest),
    })
}

/// The last instants in (`cursor`, `now`], at most `count`, oldest first. An outage of a year with a run every minute costs
/// no more than one of an hour: only as much of the end is walked as holds `count` of them.
fn last_instants(timing: &Timing, cursor: Timestamp, now: Timestamp, count: usize) -> VecDeque<Timestamp> {
    let mut span = FIRST_LOOK;
    loop {
        let start = now.checked_sub(span).unwrap_or(Timestamp::MIN).max(cursor);
        let mut last = VecDeque::new();
        let mut at = start;
        while let Some(next) = timing.next_after(at).filter(|next| *next <= now) {
            if last.len() == count {
                last.pop_front();
            }
            last.push_back(next);
            at = next;
        }
        if last.len() == count || start <= cursor {
            return last;
        }
        span = span.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(policy: MissedPolicy, cursor: &str, now: &str, runs: &[&str], missed: u32) {
        let timing = Timing::cron("*/10 * * * *", "UTC").unwrap();
        let due = due(&timing, at(cursor), at(now), policy).unwrap();
        assert_eq!(due.runs, runs.iter().map(|text| at(text)).collect::<Vec<_>>(), "{policy:?}");
        assert_eq!(due.missed, missed, "{policy:?}");
        assert_eq!(due.next, timing.next_after(due.newest));
        assert!(due.next.unwrap() > at(now));
    }

    const SKIP: MissedPolicy = MissedPolicy::Skip { deadline: Duration::from_secs(30) };

    #[test]
    fn every_missed_run_policy_runs_an_on_time_instant_once() {
        for policy in [SKIP, MissedPolicy::RunOnce, MissedPolicy::RunAll { max: 3 }] {
            check(policy, "2027-01-01T00:00:00Z", "2027-01-01T00:10:00Z", &["2027-01-01T00:10:00Z"], 0);
            check(policy, "2027-01-01T00:00:00Z", "2027-01-01T00:10:30Z", &["2027-01-01T00:10:00Z"], 0);
        }
    }

    #[test]
    fn missed_run_policies_apply_after_an_hour_outage() {
        let (cursor, now) = ("2027-01-01T00:00:00Z", "2027-01-01T01:05:00Z");
        check(SKIP, cursor, now, &[], 6);
        check(SKIP, cursor, "2027-01-01T01:00:20Z", &["2027-01-01T01:00:00Z"], 5);
        check(MissedPolicy::RunOnce, cursor, now, &["2027-01-01T01:00:00Z"], 5);
        let last = ["2027-01-01T00:40:00Z", "2027-01-01T00:50:00Z", "2027-01-01T01:00:00Z"];
        check(MissedPolicy::RunAll { max: 3 }, cursor, now, &last, 3);
        check(MissedPolicy::RunAll { max: 1 }, cursor, now, &last[2..], 5);
    }

    #[test]
    fn missed_runs_are_counted_up_to_a_limit() {
        let timing = Timing::every(1, at("2020-01-01T00:00:00Z")).unwrap();
        let began = std::time::Instant::now();
        let found =
            due(&timing, at("2020-01-01T00:00:00Z"), at("2030-01-01T00:00:00Z"), MissedPolicy::RunOnce);
        assert_eq!(found.unwrap().missed, MISSED_COUNT_MAX - 1);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn no_run_is_due_early_or_after_the_clock_went_back() {
        let timing = Timing::cron("*/10 * * * *", "UTC").unwrap();
        let cursor = at("2027-01-01T00:10:00Z");
        for now in ["2027-01-01T00:19:59Z", "2027-01-01T00:10:00Z", "2026-12-31T23:00:00Z"] {
            assert_eq!(due(&timing, cursor, at(now), MissedPolicy::RunOnce), None, "{now}");
        }
    }
}
