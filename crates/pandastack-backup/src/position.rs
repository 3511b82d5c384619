//! Positions in the WAL: LSNs, timelines, segments, and how PostgreSQL writes them.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits::SEGMENT_BYTES;

/// Segments with one middle number in their names.
const SEGMENTS_PER_GROUP: u64 = (1 << 32) / SEGMENT_BYTES;
/// 2000-01-01 in seconds of Unix: the server counts from there.
const SERVER_EPOCH_S: i64 = 946_684_800;
const MICROS_PER_S: i64 = 1_000_000;

/// A position in the log, in bytes. Written `16/B374D848`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lsn(pub u64);

impl Lsn {
    /// The segment that has the byte at this position.
    pub fn segment(self) -> u64 {
        self.0 / SEGMENT_BYTES
    }

    /// Offset in its segment.
    pub fn offset(self) -> u64 {
        self.0 % SEGMENT_BYTES
    }

    /// The first position of its segment.
    pub fn segment_start(self) -> Lsn {
        Lsn(self.0 - self.offset())
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid WAL position; expected a form such as 16/B374D848")]
pub struct NoLsn(String);

impl FromStr for Lsn {
    type Err = NoLsn;

    fn from_str(text: &str) -> Result<Self, NoLsn> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            let (high, low) = (u32::from_str_radix(high, 16).ok()?, u32::from_str_radix(low, 16).ok()?);
            Some(Lsn((u64::from(high) << 32) | u64::from(low)))
        };
        parse().ok_or_else(|| NoLsn(text.to_owned()))
    }
}

impl TryFrom<String> for Lsn {
    type Error = NoLsn;

    fn try_from(text: String) -> Result<Self, NoLsn> {
        text.parse()
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> String {
        lsn.to_string()
    }
}

/// A line of history: a new one begins with every recovery that is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timeline(pub u32);

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.0)
    }
}

impl Timeline {
    /// Reads the eight digits that [`Display`](fmt::Display) writes.
    pub(crate) fn from_digits(text: &str) -> Option<Self> {
        exact_hex(text).map(Timeline)
    }
}

/// A file of the log. Its [`Display`](fmt::Display) is the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// Line of history.
    pub timeline: Timeline,
    /// Counted from the log's beginning.
    pub number: u64,
}

impl Segment {
    /// The segment of a position.
    pub fn at(timeline: Timeline, lsn: Lsn) -> Self {
        Self { timeline, number: lsn.segment() }
    }

    /// First position of the segment.
    pub fn start(self) -> Lsn {
        Lsn(self.number * SEGMENT_BYTES)
    }

    /// Reads a file's name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (timeline, group) = (name.get(..8)?, name.get(8..16)?);
        let (group, place): (u32, u32) = (exact_hex(group)?, exact_hex(name.get(16..)?)?);
        let within = u64::from(place) < SEGMENTS_PER_GROUP;
        let number = u64::from(group) * SEGMENTS_PER_GROUP + u64::from(place);
        within.then_some(Self { timeline: Timeline::from_digits(timeline)?, number })
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, place) = (self.number / SEGMENTS_PER_GROUP, self.number % SEGMENTS_PER_GROUP);
        write!(f, "{}{group:08X}{place:08X}", self.timeline)
    }
}

/// Eight capital digits, as the server writes them: names have one form only.
pub(crate) fn exact_hex(text: &str) -> Option<u32> {
    let digits = text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// An instant as the server counts it: microseconds since 2000. `None` beyond the calendar.
pub(crate) fn server_time(micros: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(micros.checked_add(SERVER_EPOCH_S * MICROS_PER_S)?).ok()
}

/// Converts a time to the server's format.
pub(crate) fn to_server_time(time: Timestamp) -> i64 {
    time.as_microsecond() - SERVER_EPOCH_S * MICROS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsns_are_formatted_like_postgres() {
        for (lsn, text) in [(0, "0/0"), (0x16_B374_D848, "16/B374D848"), (u64::MAX, "FFFFFFFF/FFFFFFFF")] {
            assert_eq!(Lsn(lsn).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn(lsn)));
        }
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "G/0", "1/123456789"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }

    #[test]
    fn segment_names_match_wal_file_names() {
        let segment = Segment::at(Timeline(2), Lsn(0x1_FF00_0001));
        assert_eq!(segment.to_string(), "0000000200000001000000FF");
        assert_eq!(segment.start(), Lsn(0x1_FF00_0000));
        assert_eq!(Segment::from_name("0000000200000001000000FF"), Some(segment));
        for name in ["", "0000000200000001000000ff", "000000020000000100000100", "0000000200000001000000FF0"]
        {
            assert_eq!(Segment::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn postgres_times_count_from_the_year_2000() {
        let time: Timestamp = "2000-01-01T00:00:01.000002Z".parse().unwrap();
        assert_eq!(server_time(1_000_002), Some(time));
        assert_eq!(to_server_time(time), 1_000_002);
        assert_eq!(server_time(i64::MAX), None);
    }
}
