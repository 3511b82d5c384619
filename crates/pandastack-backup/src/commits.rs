//! Reads commit times from the WAL.
//!
//! A server with a recovery target time stops at the first transaction that ended later. If there
//! is no later one, it fails, although it recovered the whole log. So a caller that sets a target
//! time must know that a later transaction exists.
//!
//! ```text
//!   segment = pages of 8 KiB | page = head of 24 bytes (40 on a segment's first page) + records, aligned to 8, across pages
//!   record  = length 4 | xid 4 | previous 8 | info 1 | manager 1 | 2 x 0 | crc 4 | heads of data | data
//! ```
//!
//! Formats of PostgreSQL 15 to 17. A log that does not fit ends the reading, never the program.

use jiff::Timestamp;

use crate::limits::SEGMENT_BYTES;
use crate::position::{Lsn, server_time};

const PAGE_BYTES: usize = 8192;
const SHORT_HEAD_BYTES: usize = 24;
const LONG_HEAD_BYTES: usize = 40;
const RECORD_HEAD_BYTES: usize = 24;
const ALIGNMENT: usize = 8;
/// Flag: the page begins with the rest of a record.
const CONTINUES: u16 = 0x0001;
const LONG_HEAD: u16 = 0x0002;
/// Resource manager of transactions.
const MANAGER: u8 = 1;
const OPERATION: u8 = 0x70;
/// Commit, abort, and both of prepared transactions.
const ENDS: [u8; 4] = [0x00, 0x20, 0x30, 0x40];
/// Heads of a record's data.
const DATA_SHORT: u8 = 255;
const DATA_LONG: u8 = 254;
const ORIGIN: u8 = 253;
const TOP_XID: u8 = 252;

/// The latest time at which a transaction ended in a log that begins with the segment at `start`.
pub(crate) fn latest_end(log: &[u8], start: Lsn) -> Option<Timestamp> {
    let records = Records::of(log, start);
    records.ends().into_iter().filter_map(server_time).max()
}

/// A page's place among the records.
struct Page {
    at: usize,
    /// Remaining bytes of a record that began earlier.
    rest: usize,
}

/// The log without the heads of its pages.
struct Records {
    bytes: Vec<u8>,
    pages: Vec<Page>,
}

impl Records {
    fn of(log: &[u8], start: Lsn) -> Self {
        let mut records = Self { bytes: Vec::with_capacity(log.len()), pages: Vec::new() };
        let segment_bytes = usize::try_from(SEGMENT_BYTES).unwrap_or(usize::MAX);
        for (number, segment) in (0_u64..).zip(log.chunks(segment_bytes)) {
            let begin = start.0 + number * SEGMENT_BYTES;
            for (page, bytes) in (0_u64..).zip(segment.chunks(PAGE_BYTES)) {
                // No pages follow after a segment switch, or at the end.
                let Some((head_bytes, rest)) = page_head(bytes, begin + page * PAGE_BYTES as u64) else {
                    break;
                };
                records.pages.push(Page { at: records.bytes.len(), rest });
                records.bytes.extend_from_slice(bytes.get(head_bytes..).unwrap_or_default());
            }
        }
        records
    }

    /// Times of all ends, in the server's count.
    fn ends(&self) -> Vec<i64> {
        let (mut ends, mut at, mut page) = (Vec::new(), self.after_rest(0), 0);
        while at + RECORD_HEAD_BYTES <= self.bytes.len() {
            while self.pages.get(page).is_some_and(|next| next.at <= at) {
                page += 1;
            }
            let bytes = usize::try_from(u32_at(&self.bytes, at).unwrap_or(0)).unwrap_or(usize::MAX);
            let end = at.saturating_add(bytes);
            let broken = bytes < RECORD_HEAD_BYTES
                || self.pages.get(page).is_some_and(|next| next.at < end && next.rest != end - next.at);
            if broken {
                // Nothing was written here, or a crash cut it off: continue with the next page.
                if page >= self.pages.len() {
                    break;
                }
                at = self.after_rest(page);
                continue;
            }
            let Some(record) = self.bytes.get(at..end) else { break };
            ends.extend(end_of(record));
            at = end.next_multiple_of(ALIGNMENT);
        }
        ends
    }

    fn after_rest(&self, page: usize) -> usize {
        self.pages.get(page).map_or(0, |page| page.at.saturating_add(page.rest).next_multiple_of(ALIGNMENT))
    }
}

/// Bytes of a page's head, and of the record that continues after it. `None` if the bytes are not a
/// page of the log at this position.
fn page_head(page: &[u8], position: u64) -> Option<(usize, usize)> {
    let info = u16::from_le_bytes(page.get(2..4)?.try_into().ok()?);
    let address = u64::from_le_bytes(page.get(8..16)?.try_into().ok()?);
    let rest = usize::try_from(u32_at(page, 16)?).ok()?;
    let head_bytes = if info & LONG_HEAD != 0 { LONG_HEAD_BYTES } else { SHORT_HEAD_BYTES };
    (address == position).then_some((head_bytes, if info & CONTINUES != 0 { rest } else { 0 }))
}

/// The time in a record that ends a transaction.
fn end_of(record: &[u8]) -> Option<i64> {
    let (info, manager) = (*record.get(16)?, *record.get(17)?);
    if manager != MANAGER || !ENDS.contains(&(info & OPERATION)) {
        return None;
    }
    let mut at = RECORD_HEAD_BYTES;
    loop {
        let data_bytes = match *record.get(at)? {
            DATA_SHORT => usize::from(*record.get(at + 1)?),
            DATA_LONG => usize::try_from(u32_at(record, at + 1)?).ok()?,
            ORIGIN => {
                at += 3;
                continue;
            }
            TOP_XID => {
                at += 5;
                continue;
            }
            _ => return None,
        };
        let data = record.get(record.len().checked_sub(data_bytes)?..)?;
        return Some(i64::from_le_bytes(*data.first_chunk()?));
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Lsn = Lsn(SEGMENT_BYTES * 3);

    fn record(manager: u8, info: u8, time: i64, filler: usize) -> Vec<u8> {
        let data = [&time.to_le_bytes()[..], &vec![7; filler]].concat();
        let head = [&[DATA_LONG][..], &u32::try_from(data.len()).unwrap().to_le_bytes()].concat();
        let bytes = u32::try_from(RECORD_HEAD_BYTES + head.len() + data.len()).unwrap();
        let mut record = bytes.to_le_bytes().to_vec();
        record.resize(RECORD_HEAD_BYTES, 0);
        (record[16], record[17]) = (info, manager);
        [record, head, data].concat()
    }

    /// Lays records out on pages.
    fn log(records: &[Vec<u8>]) -> Vec<u8> {
        let mut log = Vec::new();
        for record in records {
            log.resize(log.len().next_multiple_of(ALIGNMENT), 0);
            let mut left = record.as_slice();
            while !left.is_empty() {
                if log.len() % PAGE_BYTES == 0 {
                    let first = log.is_empty();
                    let rest = if left.len() < record.len() { left.len() } else { 0 };
                    let info = if first { LONG_HEAD } else { 0 } | if rest > 0 { CONTINUES } else { 0 };
                    let mut head = vec![0x13, 0xD1];
                    head.extend_from_slice(&info.to_le_bytes());
                    head.extend_from_slice(&1_u32.to_le_bytes());
                    head.extend_from_slice(&(START.0 + log.len() as u64).to_le_bytes());
                    head.extend_from_slice(&u32::try_from(rest).unwrap().to_le_bytes());
                    head.resize(if first { LONG_HEAD_BYTES } else { SHORT_HEAD_BYTES }, 0);
                    log.extend_from_slice(&head);
                }
                let room = (PAGE_BYTES - log.len() % PAGE_BYTES).min(left.len());
                log.extend_from_slice(&left[..room]);
                left = &left[room..];
            }
        }
        log
    }

    #[test]
    fn the_latest_transaction_end_is_found_across_pages() {
        let records = [
            record(MANAGER, 0x00, 1_000_000, 0),
            record(9, 0x00, 9_000_000, 20_000),
            record(MANAGER, 0x80 | 0x20, 3_000_000, 300),
            record(MANAGER, 0x10, 8_000_000, 8_100),
            record(MANAGER, 0x00, 2_000_000, 0),
        ];
        let whole = log(&records);
        assert_eq!(latest_end(&whole, START), server_time(3_000_000));
        assert_eq!(latest_end(&whole[..PAGE_BYTES], START), server_time(1_000_000));
        assert_eq!(latest_end(&whole, Lsn(0)), None, "another segment's content");
        assert_eq!(latest_end(&[], START), None);
    }

    #[test]
    fn a_truncated_wal_record_is_skipped() {
        let whole = log(&[record(9, 0, 0, 9_000)]);
        let mut page = log(&[record(MANAGER, 0, 5_000_000, 0)]);
        page[2] = 0;
        page[8..16].copy_from_slice(&(START.0 + PAGE_BYTES as u64).to_le_bytes());
        page.drain(SHORT_HEAD_BYTES..LONG_HEAD_BYTES);
        let log = [&whole[..PAGE_BYTES], &page].concat();
        assert_eq!(latest_end(&log, START), server_time(5_000_000));
    }

    proptest! {
        #[test]
        fn arbitrary_wal_never_panics_the_parser(mut log in proptest::collection::vec(any::<u8>(), 0..20_000), pages in 0_u64..3) {
            for page in 0..pages {
                let at = usize::try_from(page).unwrap() * PAGE_BYTES;
                if let Some(address) = log.get_mut(at + 8..at + 16) {
                    address.copy_from_slice(&(START.0 + page * PAGE_BYTES as u64).to_le_bytes());
                }
            }
            latest_end(&log, START);
        }
    }
}
