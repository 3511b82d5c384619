//! Finds the ends of WebSocket frames (RFC 6455, 5.2) from their heads.
//!
//! ```text
//!   First --opcode--> Second --0..125--------------------> Payload --its end--> First
//!                        +----126, 127--> Length --------->   |
//!                                            +--over 2^63--> Lost
//! ```
//!
//! Frames are neither held nor changed. Payloads, compressed or not, are not interpreted.

const OPCODE_BITS: u8 = 0x0f;
const OPCODE_CLOSE: u8 = 0x8;
const MASK_BIT: u8 = 0x80;
/// Length of the key that follows the length of a masked frame.
const MASK_BYTES: u64 = 4;

/// One direction of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Frames {
    /// The part of the length read so far; then the remaining bytes of key and payload.
    left: u64,
    part: Part,
    /// The frame in progress is a close frame.
    is_close: bool,
    has_closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    First,
    Second,
    /// An extended length, of which `bytes` bytes are missing.
    Length {
        bytes: u8,
        is_masked: bool,
    },
    Payload,
    /// The bytes are not valid WebSocket frames.
    Lost,
}

impl Frames {
    /// Returns whether the flow is between two frames.
    pub(super) fn is_between(&self) -> bool {
        self.part == Part::First
    }

    /// Returns whether frame boundaries are no longer known.
    pub(super) fn is_lost(&self) -> bool {
        self.part == Part::Lost
    }

    /// Returns whether a complete close frame has passed.
    pub(super) fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// Follows bytes that pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.pass_one(bytes);
            bytes = &bytes[taken..];
        }
    }

    /// Number of the next bytes that belong to the current frame.
    pub(super) fn rest_within(mut self, bytes: &[u8]) -> usize {
        if self.is_between() { 0 } else { self.pass_one(bytes) }
    }

    /// Follows bytes to the end of one frame at most; returns how many those are.
    fn pass_one(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.part {
                Part::Lost => return bytes.len(),
                Part::Payload => {
                    let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    self.left -= taken as u64;
                    at += taken;
                }
                _ => {
                    self.pass_head(bytes[at]);
                    at += 1;
                }
            }
            if self.part == Part::Payload && self.left == 0 {
                self.has_closed |= self.is_close;
                self.part = Part::First;
                break;
            }
        }
        at
    }

    fn pass_head(&mut self, byte: u8) {
        match self.part {
            Part::First => {
                self.is_close = byte & OPCODE_BITS == OPCODE_CLOSE;
                self.part = Part::Second;
            }
            Part::Second => {
                let is_masked = byte & MASK_BIT != 0;
                self.left = 0;
                match byte & !MASK_BIT {
                    126 => self.part = Part::Length { bytes: 2, is_masked },
                    127 => self.part = Part::Length { bytes: 8, is_masked },
                    length => self.begin_payload(length.into(), is_masked),
                }
            }
            Part::Length { bytes, is_masked } => {
                self.left = self.left << 8 | u64::from(byte);
                match bytes {
                    1 => self.begin_payload(self.left, is_masked),
                    _ => self.part = Part::Length { bytes: bytes - 1, is_masked },
                }
            }
            Part::Payload | Part::Lost => {}
        }
    }

    fn begin_payload(&mut self, length: u64, is_masked: bool) {
        self.left = length;
        // The first bit of a length is never set, so these bytes are not a length.
        if i64::try_from(length).is_err() {
            self.part = Part::Lost;
            return;
        }
        self.left += if is_masked { MASK_BYTES } else { 0 };
        self.part = Part::Payload;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u8 = 0x81;
    const CLOSE: u8 = 0x88;

    fn frame(first: u8, length: usize, is_masked: bool) -> Vec<u8> {
        let mask = if is_masked { MASK_BIT } else { 0 };
        let mut bytes = vec![first];
        match length {
            0..=125 => bytes.push(mask | length as u8),
            126..=0xffff => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(if is_masked { &[1, 2, 3, 4][..] } else { &[] });
        // A payload that looks like heads of close frames.
        bytes.resize(bytes.len() + length, CLOSE);
        bytes
    }

    #[test]
    fn a_frame_ends_at_its_length_at_any_split() {
        for length in [0, 1, 125, 126, 127, 300, 0xffff, 0x1_0000] {
            for is_masked in [false, true] {
                let bytes = frame(TEXT, length, is_masked);
                // Every split of short frames; for long ones, every split around the head and a
                // sample of the rest.
                for split in (1..bytes.len()).filter(|at| *at < 400 || at % 997 == 0) {
                    let mut frames = Frames::default();
                    assert!(frames.is_between());
                    frames.pass(&bytes[..split]);
                    assert!(!frames.is_between(), "{length} bytes, {split} passed");
                    assert_eq!(frames.rest_within(&bytes[split..]), bytes.len() - split);
                    frames.pass(&bytes[split..]);
                    assert!(frames.is_between() && !frames.has_closed(), "{length} bytes, split at {split}");
                }
            }
        }
    }

    #[test]
    fn frames_are_tracked_identically_byte_by_byte() {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for length in [0, 5, 126, 0, 0x1_0000, 125] {
            bytes.extend(frame(TEXT, length, length % 2 == 0));
            ends.push(bytes.len());
        }
        let (mut slow, mut fast) = (Frames::default(), Frames::default());
        let mut seen = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            slow.pass(&[*byte]);
            seen.extend(slow.is_between().then_some(at + 1));
        }
        fast.pass(&bytes);
        assert_eq!((seen, slow), (ends, fast));
    }

    #[test]
    fn only_the_frame_in_flight_is_counted() {
        let mut frames = Frames::default();
        let two = [frame(TEXT, 10, false), frame(TEXT, 10, false)].concat();
        assert_eq!(frames.rest_within(&two), 0, "none is under way");
        frames.pass(&two[..3]);
        assert_eq!(frames.rest_within(&two[3..]), 9);
        assert_eq!(frames.rest_within(&two[3..5]), 2, "it does not end here");
        frames.pass(&two[3..15]);
        assert_eq!(frames.rest_within(&two[15..]), 9);
    }

    #[test]
    fn a_close_frame_counts_only_when_complete() {
        for is_masked in [false, true] {
            for length in [0, 2, 125] {
                let bytes = frame(CLOSE, length, is_masked);
                let mut frames = Frames::default();
                frames.pass(&frame(TEXT, 20, is_masked));
                frames.pass(&bytes[..bytes.len() - 1]);
                assert!(!frames.has_closed());
                frames.pass(&bytes[bytes.len() - 1..]);
                assert!(frames.has_closed() && frames.is_between());
            }
        }
    }

    #[test]
    fn an_invalid_frame_length_ends_frame_tracking() {
        let mut frames = Frames::default();
        frames.pass(&[TEXT, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert!(frames.is_lost() && !frames.is_between());
        frames.pass(&frame(CLOSE, 2, false));
        assert!(frames.is_lost() && !frames.has_closed());
        let mut long = Frames::default();
        long.pass(&[TEXT, MASK_BIT | 127, 0x7f, 255, 255, 255, 255, 255, 255, 255]);
        assert!(!long.is_lost() && !long.is_between());
    }

    #[test]
    fn websocket_frame_state_is_small() {
        assert!(size_of::<Frames>() <= 16);
    }
}
