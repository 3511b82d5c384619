//! Targets for `cargo xtask fuzz`.

use bytes::Bytes;

use crate::commits::latest_end;
use crate::layout::Entry;
use crate::limits::SEGMENT_BYTES;
use crate::position::{Lsn, Segment};
use crate::replication::{WalMessage, parse_wal};
use crate::window::parent_of;

/// A message of a replication stream.
pub fn wal_message(data: &[u8]) {
    if let Some(WalMessage::Data { bytes, .. }) = parse_wal(Bytes::copy_from_slice(data)) {
        assert!(bytes.len() < data.len());
    }
}

/// A log: the first bytes are the number of its segment. Reading it ends.
pub fn wal(data: &[u8]) {
    let Some((segment, log)) = data.split_first_chunk::<2>() else { return };
    let _ = latest_end(log, Lsn(u64::from(u16::from_le_bytes(*segment)) * SEGMENT_BYTES));
}

/// A name in an archive, and a history file. A name is read as one thing and written as the same name.
pub fn archive_names(data: &[u8]) {
    let _ = parent_of(data);
    let Ok(name) = std::str::from_utf8(data) else { return };
    if let Some(entry) = Entry::from_name(name) {
        assert_eq!(entry.name(), name);
    }
    if let Some(segment) = Segment::from_name(name) {
        assert_eq!(Segment::from_name(&segment.to_string()), Some(segment));
        assert_eq!(Segment::at(segment.timeline, segment.start()), segment);
    }
    if let Ok(position) = name.parse::<Lsn>() {
        assert_eq!(position.to_string().parse(), Ok(position));
    }
}
