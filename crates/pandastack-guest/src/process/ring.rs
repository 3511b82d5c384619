//! The latest output of a process, by absolute offset.
//!
//! Invariants: bytes never change their offset; the ring never exceeds its limit; while a reader is
//! attached, nothing that it still needs is dropped, so the writer has to wait instead.

use std::collections::VecDeque;

/// A bounded tail of a byte stream.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    /// Offset of the first byte held.
    start: u64,
    limit: usize,
}

impl Ring {
    /// An empty ring that grows to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), start: 0, limit }
    }

    /// Offset of the first byte that can still be read.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Offset after the last byte written.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Number of bytes that can be pushed without dropping any from `keep_from` on. Without a
    /// reader no bytes have to be kept.
    pub(crate) fn free_bytes(&self, keep_from: Option<u64>) -> usize {
        let Some(keep_from) = keep_from else { return self.limit };
        let kept = self.end().saturating_sub(keep_from.max(self.start));
        self.limit.saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX))
    }

    /// Appends, dropping the oldest bytes beyond the limit. The caller has asked [`Ring::room`] first if a
    /// reader needs them.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let skipped = bytes.len().saturating_sub(self.limit);
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(self.limit);
        let dropped = excess.min(self.bytes.len());
        self.bytes.drain(..dropped);
        self.start += (dropped + skipped) as u64;
        self.bytes.extend(bytes.iter().skip(skipped));
    }

    /// Copies up to `max` bytes from `offset` on. Empty when there is nothing, or the offset is gone.
    pub(crate) fn read(&self, offset: u64, max: usize) -> Vec<u8> {
        let Some(at) = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok()) else {
            return Vec::new();
        };
        let until = at.saturating_add(max).min(self.bytes.len());
        if at >= until {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(until - at);
        let (front, back) = self.bytes.as_slices();
        out.extend_from_slice(front.get(at..until.min(front.len())).unwrap_or_default());
        let back_from = at.saturating_sub(front.len());
        let back_until = until.saturating_sub(front.len());
        out.extend_from_slice(back.get(back_from..back_until).unwrap_or_default());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_offsets_stay_valid_when_old_bytes_are_dropped() {
        let mut ring = Ring::new(8);
        let mut all = Vec::new();
        for step in 0..50_u8 {
            let piece: Vec<u8> = (0..step % 7).map(|i| step.wrapping_mul(3).wrapping_add(i)).collect();
            ring.push(&piece);
            all.extend_from_slice(&piece);
            assert_eq!(ring.end(), all.len() as u64);
            assert!(ring.len() <= 8);
            let from = usize::try_from(ring.start()).unwrap();
            assert_eq!(ring.read(ring.start(), 100), &all[from..]);
            for offset in from..all.len() {
                assert_eq!(ring.read(offset as u64, 2), &all[offset..all.len().min(offset + 2)]);
            }
        }
    }

    #[test]
    fn a_write_longer_than_the_ring_keeps_its_tail() {
        let mut ring = Ring::new(4);
        ring.push(b"abcdefghij");
        assert_eq!((ring.start(), ring.end()), (6, 10));
        assert_eq!(ring.read(6, 10), b"ghij");
        assert!(ring.read(5, 10).is_empty(), "what is gone cannot be read");
    }

    #[test]
    fn a_reader_limits_the_free_ring_space() {
        let mut ring = Ring::new(8);
        ring.push(b"abcdef");
        assert_eq!(ring.free_bytes(None), 8);
        assert_eq!(ring.free_bytes(Some(0)), 2);
        assert_eq!(ring.free_bytes(Some(4)), 6);
        assert_eq!(ring.free_bytes(Some(6)), 8);
    }
}
