//! The instants of a schedule: cron in a time zone, an interval, or one time.
//!
//! On days when a clock jumps ahead, a fixed time inside the gap happens when the gap ends; when a clock goes back, a
//! fixed time happens once, the first time, and repeating minutes happen in both hours. Day of month and day of week
//! are alternatives when both are given, as in Vixie's cron.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pandastack_types::limits::{CRON_BYTES_MAX, SCHEDULE_EVERY_SECONDS_MAX};

/// Names for expressions, such as `@daily`.
const NICKNAMES: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Reason why a timing was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The text is not a cron expression.
    #[error("`{text}` is not a cron expression with five fields (minute hour day month weekday): {why}")]
    Cron {
        /// The text.
        text: String,
        /// Reason why it is invalid.
        why: String,
    },
    /// No day is like that.
    #[error("`{0}` matches no date, like February 31; choose a day that exists")]
    Never(String),
    /// The time zone does not exist.
    #[error("time zone `{0}` not found; use an IANA name such as `Europe/Berlin` or `UTC`")]
    Zone(String),
    /// The interval is too short or too long.
    #[error("`every_seconds` must be 1 to {SCHEDULE_EVERY_SECONDS_MAX}")]
    Every,
}

impl From<TimingError> for pandastack_types::Error {
    fn from(error: TimingError) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// When a schedule runs.
#[derive(Debug, Clone)]
pub enum Timing {
    /// At the times of an expression, on the clock of a zone.
    Cron {
        /// The expression.
        cron: Box<Cron>,
        /// The zone.
        zone: TimeZone,
    },
    /// Every so often.
    Every {
        /// Time between two runs.
        interval: SignedDuration,
        /// Instants are multiples of the interval after this.
        anchor: Timestamp,
    },
    /// Once.
    Once(Timestamp),
}

impl Timing {
    /// Reads a cron expression and the name of its zone.
    pub fn cron(text: &str, zone: &str) -> Result<Self, TimingError> {
        let shown = || text.chars().take(CRON_BYTES_MAX).collect::<String>();
        let refused = |why: String| TimingError::Cron { text: shown(), why };
        if text.len() > CRON_BYTES_MAX {
            return Err(refused(format!("it is longer than {CRON_BYTES_MAX} bytes")));
        }
        let trimmed = text.trim();
        let is_nickname = NICKNAMES.iter().any(|known| known.eq_ignore_ascii_case(trimmed));
        if trimmed.contains('@') && !is_nickname {
            return Err(refused(format!("the supported names are {}", NICKNAMES.join(", "))));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(trimmed).map_err(|error| refused(error.to_string()))?;
        let zone = zone_named(zone)?;
        let timing = Timing::Cron { cron: Box::new(cron), zone };
        // The search ends after some thousand years, within milliseconds.
        match timing.next_after(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(timing),
            None => Err(TimingError::Never(shown())),
        }
    }

    /// Every given number of seconds from an anchor.
    pub fn every(seconds: u64, anchor: Timestamp) -> Result<Self, TimingError> {
        match i64::try_from(seconds) {
            Ok(whole) if (1..=SCHEDULE_EVERY_SECONDS_MAX).contains(&seconds) => {
                Ok(Timing::Every { interval: SignedDuration::from_secs(whole), anchor })
            }
            _ => Err(TimingError::Every),
        }
    }

    /// The first instant after a time; `None` if no instant follows.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Timing::Cron { cron, zone } => {
                // An expression knows whole seconds only.
                let after = Timestamp::from_second(after.as_second()).ok()?;
                let next = cron.find_next_occurrence(&after.to_zoned(zone.clone()), false).ok()?;
                Some(next.timestamp())
            }
            Timing::Every { interval, anchor } => {
                let passed = after.duration_since(*anchor).as_micros();
                let step = interval.as_micros();
                let count = if passed < 0 { 1 } else { passed / step + 1 };
                let offset = i64::try_from(count.checked_mul(step)?).ok()?;
                anchor.checked_add(SignedDuration::from_micros(offset)).ok()
            }
            Timing::Once(at) => (*at > after).then_some(*at),
        }
    }

    /// The next instants after a time.
    pub fn instants_after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.next_after(after), |last| self.next_after(*last))
    }

    /// The zone whose clock it follows.
    pub fn zone(&self) -> TimeZone {
        match self {
            Timing::Cron { zone, .. } => zone.clone(),
            Timing::Every { .. } | Timing::Once(_) => TimeZone::UTC,
        }
    }
}

/// A zone by its IANA name only: neither "the system's" nor a POSIX rule would mean the same on another server.
fn zone_named(name: &str) -> Result<TimeZone, TimingError> {
    let unknown = || TimingError::Zone(name.chars().take(64).collect());
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte)) {
        return Err(unknown());
    }
    TimeZone::get(name).map_err(|_| unknown())
}

#[cfg(test)]
mod tests;
