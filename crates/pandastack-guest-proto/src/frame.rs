//! Frames: many calls on one byte stream.
//!
//! ```text
//! 0      1      2       3           7            11            11+length
//! +------+------+-------+-----------+------------+-------------+------+
//! | 0xA5 | kind | flags | stream LE | length LE  | payload ... | 0x5A |
//! +------+------+-------+-----------+------------+-------------+------+
//! ```
//!
//! Invariant: the first byte, the top byte of `length` (always zero) and the trailer never occur in
//! [`crate::sync::PREAMBLE_MAGIC`]. A frame that was cut off and completed by the next connection's
//! preamble therefore never passes as whole, and the magic can only show up inside one payload,
//! where [`data_chunks`] splits it.
//!
//! [`decode`] is a pure function of its input, for fuzzing as much as for clarity.

use crate::limits::{DATA_BYTES_MAX, FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::sync::PREAMBLE_MAGIC;

/// Bytes in front of every payload.
pub const HEADER_BYTES: usize = 11;
/// Bytes after every payload.
pub const TRAILER_BYTES: usize = 1;
/// First byte of a frame.
pub const FRAME_START: u8 = 0xA5;
/// Last byte of a frame.
pub const FRAME_END: u8 = 0x5A;
/// Flag of a [`FrameKind::Data`] frame: the bytes are standard error.
pub const FLAG_STDERR: u8 = 0b0000_0001;

const FLAGS_KNOWN: u8 = FLAG_STDERR;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame in each direction, on stream 0: JSON, [`crate::message::Hello`].
    Hello = 1,
    /// Host to guest: JSON, [`crate::message::Request`]; opens the stream.
    Request = 2,
    /// Guest to host: JSON, [`crate::message::Event`]; within the stream's credit.
    Event = 3,
    /// Guest to host: JSON, [`crate::message::Reply`]; always the stream's last frame.
    Reply = 4,
    /// Raw bytes, within the stream's credit.
    Data = 5,
    /// Host to guest: no more [`FrameKind::Data`] follows on this stream.
    End = 6,
    /// Four bytes, little endian: that much more may be sent on the stream.
    Credit = 7,
    /// Host to guest: stop this call. The guest still sends its reply.
    Cancel = 8,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Request,
            3 => Self::Event,
            4 => Self::Reply,
            5 => Self::Data,
            6 => Self::End,
            7 => Self::Credit,
            8 => Self::Cancel,
            _ => return None,
        })
    }

    /// Largest payload that a frame of this kind may carry.
    #[must_use]
    pub fn payload_max(self) -> usize {
        match self {
            Self::Request => REQUEST_BYTES_MAX,
            Self::Credit => 4,
            Self::End | Self::Cancel => 0,
            Self::Hello | Self::Event | Self::Reply | Self::Data => FRAME_BYTES_MAX,
        }
    }
}

/// One decoded frame, borrowing its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Kind of frame.
    pub kind: FrameKind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// The call that it belongs to; 0 for the connection itself.
    pub stream: u32,
    /// Payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The grant of a [`FrameKind::Credit`] frame.
    ///
    /// # Errors
    /// When the payload is not four bytes.
    pub fn credit(&self) -> Result<u32, FrameError> {
        let bytes = <[u8; 4]>::try_from(self.payload)
            .map_err(|_| FrameError::CreditLength { stream: self.stream, length: self.payload.len() })?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Why a byte stream is not a sequence of frames. The connection cannot continue after any of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is wrong: the stream is out of step.
    #[error("a frame began with byte {0:#04x}; the stream is out of step, reconnect to resynchronize")]
    Start(u8),
    /// The last byte is wrong: the frame was cut.
    #[error("a frame of stream {stream} ended with byte {byte:#04x}; it was cut, reconnect to resynchronize")]
    End {
        /// The call it claimed to belong to.
        stream: u32,
        /// Byte in the trailer's place.
        byte: u8,
    },
    /// A kind that this generation does not know.
    #[error("frame kind {0} is not known to this protocol generation")]
    Kind(u8),
    /// Flag bits that this generation does not know.
    #[error("frame flags {0:#010b} are not known to this protocol generation")]
    Flags(u8),
    /// Longer than its kind allows.
    #[error("a {kind:?} frame claims {length} bytes, at most {max} are allowed")]
    Length {
        /// Kind of frame.
        kind: FrameKind,
        /// Length in the header.
        length: u32,
        /// The limit.
        max: usize,
    },
    /// A credit frame that is not four bytes long.
    #[error("a credit frame of stream {stream} has {length} bytes instead of 4")]
    CreditLength {
        /// The stream it names.
        stream: u32,
        /// Length of the frame.
        length: usize,
    },
}

/// Decodes the frame at the start of `bytes`: the frame and its length on the wire, or `None` when
/// more bytes are needed. An invalid length is refused from the header alone.
///
/// # Errors
/// When the bytes cannot be the start of a frame.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some(&start) = bytes.first() else { return Ok(None) };
    if start != FRAME_START {
        return Err(FrameError::Start(start));
    }
    let Some(&[_, kind, flags, s0, s1, s2, s3, l0, l1, l2, l3]) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let kind = FrameKind::from_byte(kind).ok_or(FrameError::Kind(kind))?;
    if flags & !FLAGS_KNOWN != 0 {
        return Err(FrameError::Flags(flags));
    }
    let stream = u32::from_le_bytes([s0, s1, s2, s3]);
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let max = kind.payload_max();
    let payload_len = usize::try_from(length).unwrap_or(usize::MAX);
    if payload_len > max {
        return Err(FrameError::Length { kind, length, max });
    }
    let payload_end = HEADER_BYTES + payload_len;
    let (Some(payload), Some(&end)) = (bytes.get(HEADER_BYTES..payload_end), bytes.get(payload_end)) else {
        return Ok(None);
    };
    if end != FRAME_END {
        return Err(FrameError::End { stream, byte: end });
    }
    Ok(Some((Frame { kind, flags, stream, payload }, payload_end + TRAILER_BYTES)))
}

/// Appends one frame to `out`. The payload must keep to [`FrameKind::payload_max`]; raw bytes that a
/// tenant chose go through [`data_chunks`] first.
pub fn encode(out: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    debug_assert!(payload.len() <= kind.payload_max(), "{kind:?} payload of {} bytes", payload.len());
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.reserve(HEADER_BYTES + payload.len() + TRAILER_BYTES);
    out.extend_from_slice(&[FRAME_START, kind as u8, flags]);
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(payload);
    out.push(FRAME_END);
}

/// Appends a credit frame to `out`.
pub fn encode_credit(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    encode(out, FrameKind::Credit, 0, stream, &bytes.to_le_bytes());
}

/// Cuts `bytes` into payloads for data frames: none longer than [`DATA_BYTES_MAX`], none with a whole
/// preamble magic in it, so that no tenant can make its own guest believe in a new connection.
pub fn data_chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let window = &rest[..rest.len().min(DATA_BYTES_MAX)];
        let cut = match memchr::memmem::find(window, &PREAMBLE_MAGIC) {
            Some(at) => at + PREAMBLE_MAGIC.len() / 2,
            None => window.len(),
        };
        let (chunk, after) = rest.split_at(cut);
        rest = after;
        Some(chunk)
    })
}

/// A growing buffer that hands out the frames in it. Used by the host after the handshake; the guest uses
/// [`crate::sync::GuestDecoder`], which also watches for a new connection.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// When the bytes are not a frame; nothing can be read after that.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let start = self.start;
        match decode(&self.bytes[start..])? {
            Some((frame, length)) => {
                self.start = start + length;
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame_bytes(kind: FrameKind, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, kind, 0, stream, payload);
        out
    }

    #[test]
    fn invalid_frames_are_rejected_with_the_matching_error() {
        let good = frame_bytes(FrameKind::Data, 7, b"abc");
        let check = |at: usize, byte: u8, expect: FrameError| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(decode(&bytes), Err(expect), "byte {at} = {byte:#x}");
        };
        check(0, 0, FrameError::Start(0));
        check(1, 99, FrameError::Kind(99));
        check(2, 0x80, FrameError::Flags(0x80));
        check(9, 0x7f, FrameError::Length { kind: FrameKind::Data, length: 0x7f0003, max: FRAME_BYTES_MAX });
        check(14, 0, FrameError::End { stream: 7, byte: 0 });
        assert!(decode(&good[..good.len() - 1]).unwrap().is_none(), "a cut frame waits for the rest");
    }

    #[test]
    fn data_containing_the_preamble_magic_is_split() {
        let mut bytes = vec![1, 2, 3];
        bytes.extend_from_slice(&PREAMBLE_MAGIC);
        bytes.extend_from_slice(&PREAMBLE_MAGIC);
        let mut wire = Vec::new();
        for chunk in data_chunks(&bytes) {
            encode(&mut wire, FrameKind::Data, 0, 1, chunk);
        }
        assert!(memchr::memmem::find(&wire, &PREAMBLE_MAGIC).is_none());
        assert_eq!(data_chunks(&bytes).flatten().copied().collect::<Vec<_>>(), bytes);
    }

    proptest! {
        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn frames_round_trip_across_any_chunking(stream in any::<u32>(), payload in proptest::collection::vec(any::<u8>(), 0..2048), cut in 1usize..64) {
            let wire = [frame_bytes(FrameKind::Data, stream, &payload), frame_bytes(FrameKind::End, stream, &[])].concat();
            let mut buffer = FrameBuffer::default();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                buffer.push(piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    seen.push((frame.kind, frame.stream, frame.payload.to_vec()));
                }
            }
            prop_assert_eq!(seen, vec![(FrameKind::Data, stream, payload), (FrameKind::End, stream, vec![])]);
        }
    }
}
