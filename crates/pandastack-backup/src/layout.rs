//! Names of objects below `<prefix>/<database>/`, and nothing else.
//!
//! ```text
//!   base/<label>/base.tar.zst.<number>        the tar of a base, cut into parts
//!   base/<label>/backup_manifest              the server's own list of files
//!   base/<label>/manifest.json                the base's description, written last: without it there is no base
//!   wal/<timeline>/<segment>.zst              a whole segment
//!   wal/<timeline>/<segment>.<from>-<to>.zst  bytes of a segment that is not full yet
//!   wal/<timeline>.history                    where a timeline comes from
//! ```
//!
//! All of them are sealed (see [`seal`](crate::seal)); names say what is inside once opened.
//!
//! **Why pieces.** Object stores cannot append, and putting a 16 MiB segment again every two
//! seconds would send gigabytes an hour for a database that hardly writes. A piece is put once,
//! named by what it covers. Once [`MERGE_PIECES`](crate::limits::MERGE_PIECES) of one size class
//! exist, they are merged into one; once the segment is full, it is put whole and its pieces are
//! deleted. So a byte is sent a few times at most, and a restore reads a few dozen objects beyond
//! the last whole segment. Objects are never replaced: an interrupted merge leaves pieces that
//! cover the same bytes twice, which readers accept.

use crate::limits::SEGMENT_BYTES;
use crate::position::{Segment, Timeline, exact_hex};

/// Longest label of a base.
const LABEL_CHARS_MAX: usize = 64;

/// An object of the archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A part of a base's tar.
    BasePart {
        /// Label of the base.
        label: String,
        /// Counted from 0.
        number: u32,
    },
    /// The server's list of files.
    ServerManifest {
        /// Label of the base.
        label: String,
    },
    /// The description of a base.
    Base {
        /// Label of the base.
        label: String,
    },
    /// A whole segment.
    Segment(Segment),
    /// Bytes of a segment.
    Piece(Piece),
    /// History of a timeline.
    History(Timeline),
}

/// Bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// The segment.
    pub segment: Segment,
    /// First byte in the segment.
    pub from: u32,
    /// Byte after the last.
    pub to: u32,
}

impl Entry {
    /// Name below the database's prefix.
    pub fn name(&self) -> String {
        match self {
            Entry::BasePart { label, number } => format!("base/{label}/base.tar.zst.{number:05}"),
            Entry::ServerManifest { label } => format!("base/{label}/backup_manifest"),
            Entry::Base { label } => format!("base/{label}/manifest.json"),
            Entry::Segment(segment) => format!("wal/{}/{segment}.zst", segment.timeline),
            Entry::Piece(Piece { segment, from, to }) => {
                format!("wal/{}/{segment}.{from:08X}-{to:08X}.zst", segment.timeline)
            }
            Entry::History(timeline) => format!("wal/{timeline}.history"),
        }
    }

    /// Parses a name; `None` for foreign objects.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let entry = match (parts.next()?, parts.next()?, parts.next(), parts.next()) {
            ("base", label, Some(file), None) => base_entry(label, file)?,
            ("wal", timeline, Some(file), None) => wal_entry(Timeline::from_digits(timeline)?, file)?,
            ("wal", file, None, None) => {
                Entry::History(Timeline::from_digits(file.strip_suffix(".history")?)?)
            }
            _ => return None,
        };
        // A number may be written in many ways, and only one of them is a name.
        (entry.name() == name).then_some(entry)
    }
}

fn base_entry(label: &str, file: &str) -> Option<Entry> {
    let label = is_label(label).then(|| label.to_owned())?;
    match file {
        "manifest.json" => Some(Entry::Base { label }),
        "backup_manifest" => Some(Entry::ServerManifest { label }),
        part => Some(Entry::BasePart { label, number: part.strip_prefix("base.tar.zst.")?.parse().ok()? }),
    }
}

fn wal_entry(timeline: Timeline, file: &str) -> Option<Entry> {
    let file = file.strip_suffix(".zst")?;
    let (segment, range) =
        file.split_once('.').map_or((file, None), |(segment, range)| (segment, Some(range)));
    let segment = Segment::from_name(segment).filter(|segment| segment.timeline == timeline)?;
    let Some(range) = range else { return Some(Entry::Segment(segment)) };
    let (from, to) = range.split_once('-')?;
    let (from, to) = (exact_hex(from)?, exact_hex(to)?);
    (from < to && u64::from(to) < SEGMENT_BYTES).then_some(Entry::Piece(Piece { segment, from, to }))
}

/// Returns whether a text can be the label of a base, or the id of a database.
pub(crate) fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.len() <= LABEL_CHARS_MAX && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let label = || "[A-Za-z0-9_-]{1,64}";
        let segment = (any::<u32>(), 0_u64..1 << 40)
            .prop_map(|(timeline, number)| Segment { timeline: Timeline(timeline), number });
        let end = u32::try_from(SEGMENT_BYTES).unwrap();
        let piece = (segment.clone(), 0..end - 1, 1..end).prop_filter_map("empty", |(segment, from, to)| {
            (from < to).then_some(Entry::Piece(Piece { segment, from, to }))
        });
        prop_oneof![
            (label(), any::<u32>()).prop_map(|(label, number)| Entry::BasePart { label, number }),
            label().prop_map(|label| Entry::ServerManifest { label }),
            label().prop_map(|label| Entry::Base { label }),
            segment.prop_map(Entry::Segment),
            piece,
            any::<u32>().prop_map(|timeline| Entry::History(Timeline(timeline))),
        ]
    }

    proptest! {
        #[test]
        fn every_archive_entry_name_round_trips(entry in entry()) {
            prop_assert_eq!(Entry::from_name(&entry.name()), Some(entry));
        }

        #[test]
        fn object_names_have_one_canonical_form(name in "(wal|base)/[0-9A-F/.a-z-]{0,60}") {
            if let Some(entry) = Entry::from_name(&name) {
                prop_assert_eq!(entry.name(), name);
            }
        }
    }

    #[test]
    fn foreign_object_names_are_rejected() {
        for name in [
            "",
            "base",
            "base/x",
            "base/x/base.tar.zst.1",
            "base/x.y/manifest.json",
            "wal/00000001/000000020000000000000001.zst",
            "wal/00000001/000000010000000000000001",
            "wal/00000001/000000010000000000000001.00000002-00000001.zst",
            "wal/00000001/000000010000000000000001.00000000-01000000.zst",
            "wal/00000001/000000010000000000000001.zst#1",
        ] {
            assert_eq!(Entry::from_name(name), None, "{name}");
        }
    }
}
