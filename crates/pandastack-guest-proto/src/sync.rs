//! Finds the start of a connection on a channel without connections.
//!
//! A virtio-serial port is one byte stream for the life of the machine: what an earlier host wrote,
//! whole or cut in the middle of a frame, is still there after a snapshot, a fork or a reconnect,
//! and the guest may never see that its peer changed. So each connection starts with a preamble
//! that cannot occur inside frames (see [`crate::frame`]), and each side discards everything before
//! it.
//!
//! ```text
//! host -> guest   magic[16] nonce[16] !nonce[16]      then frames
//! guest -> host   ack magic[16] nonce[16]             then frames
//! ```
//!
//! The inverted copy distinguishes a complete preamble from a truncated one followed by another.

use crate::frame::{Frame, FrameError, decode};

/// First bytes of a preamble. Frozen for every generation. Not valid UTF-8, so never inside JSON; no
/// 0x00, 0x5A or 0xA5, the bytes that frame the frames; no proper prefix that is also a suffix.
pub const PREAMBLE_MAGIC: [u8; 16] = *b"\xff\xfePandaStack\xfd\xfc\xfb\xfa";
/// First bytes of the guest's answer. Frozen for every generation.
pub const ACK_MAGIC: [u8; 16] = *b"\xfe\xffPandaStack\xfa\xfb\xfc\xfd";
/// Bytes in a nonce.
pub const NONCE_BYTES: usize = 16;
/// Bytes in a preamble.
pub const PREAMBLE_BYTES: usize = 16 + 2 * NONCE_BYTES;
/// Bytes in the guest's answer.
pub const ACK_BYTES: usize = 16 + NONCE_BYTES;

/// A fresh random value per connection.
pub type Nonce = [u8; NONCE_BYTES];

/// The bytes with which the host opens a connection.
#[must_use]
pub fn preamble(nonce: &Nonce) -> Vec<u8> {
    let inverted = nonce.map(|byte| !byte);
    [&PREAMBLE_MAGIC[..], nonce, &inverted].concat()
}

/// The bytes with which the guest answers a preamble.
#[must_use]
pub fn ack(nonce: &Nonce) -> Vec<u8> {
    [&ACK_MAGIC[..], nonce].concat()
}

/// Finds the end of the guest's answer to `nonce` in `bytes`; everything before it is stale.
#[must_use]
pub fn find_ack_end(bytes: &[u8], nonce: &Nonce) -> Option<usize> {
    memchr::memmem::find(bytes, &ack(nonce)).map(|at| at + ACK_BYTES)
}

/// An item in the byte stream, as seen by the guest.
#[derive(Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// A host connected: forget the last one's calls, answer with [`ack`].
    Connected(Nonce),
    /// A frame of the present connection.
    Frame(Frame<'a>),
    /// The stream is out of sync; no input until the next preamble.
    Lost(FrameError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection: looking for the magic.
    Searching,
    /// The buffer starts with the magic.
    Preamble,
    /// Between frames of a connection.
    Connected,
}

/// The guest's decoder: frames of the present connection, and the start of the next one at any byte.
///
/// ```text
/// Searching --magic--> Preamble --whole--> Connected --bad frame--> Searching
///     ^                   |                    |
///     +----- not whole ---+<------ magic ------+
/// ```
#[derive(Debug)]
pub struct GuestDecoder {
    bytes: Vec<u8>,
    start: usize,
    /// No magic starts in `bytes[start..searched]`.
    searched: usize,
    state: State,
}

impl Default for GuestDecoder {
    fn default() -> Self {
        Self { bytes: Vec::new(), start: 0, searched: 0, state: State::Searching }
    }
}

impl GuestDecoder {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.searched = self.searched.saturating_sub(self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops the connection, after the channel reported that the host is gone.
    pub fn disconnect(&mut self) {
        *self = Self::default();
    }

    /// The next thing in the stream, or `None` when more bytes are needed.
    pub fn next_input(&mut self) -> Option<Input<'_>> {
        loop {
            match self.state {
                State::Searching => match self.find_magic() {
                    Some(at) => {
                        self.start = at;
                        self.state = State::Preamble;
                    }
                    None => {
                        // Keep only bytes that may be the start of an incomplete magic.
                        self.start = self.searched;
                        return None;
                    }
                },
                State::Preamble => {
                    let nonce = self.take_preamble()?;
                    if let Some(nonce) = nonce {
                        return Some(Input::Connected(nonce));
                    }
                }
                State::Connected => break,
            }
        }
        self.next_of_connection()
    }

    /// Outer `None`: more bytes are needed. Inner `None`: not a preamble after all.
    fn take_preamble(&mut self) -> Option<Option<Nonce>> {
        let (_, rest) = self.bytes[self.start..].split_first_chunk::<16>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let (inverted, _) = rest.split_first_chunk::<NONCE_BYTES>()?;
        if nonce.map(|byte| !byte) == *inverted {
            let nonce = *nonce;
            self.start += PREAMBLE_BYTES;
            self.state = State::Connected;
            self.searched = self.start;
            return Some(Some(nonce));
        }
        self.start += 1;
        self.searched = self.start;
        self.state = State::Searching;
        Some(None)
    }

    fn next_of_connection(&mut self) -> Option<Input<'_>> {
        let magic_at = self.find_magic();
        let limit = magic_at.unwrap_or(self.bytes.len());
        // Decoded twice on success because a borrow that is returned from one branch only would keep
        // `self` borrowed in all of them.
        match decode(&self.bytes[self.start..limit]) {
            Ok(Some(_)) => {
                let begin = self.start;
                let (frame, length) = decode(&self.bytes[begin..limit]).ok()??;
                self.start = begin + length;
                Some(Input::Frame(frame))
            }
            Ok(None) if magic_at.is_some() => {
                self.start = limit;
                self.state = State::Preamble;
                self.next_input()
            }
            Ok(None) => None,
            Err(error) => {
                self.state = State::Searching;
                self.searched = self.start;
                Some(Input::Lost(error))
            }
        }
    }

    fn find_magic(&mut self) -> Option<usize> {
        let from = self.searched.max(self.start);
        match memchr::memmem::find(&self.bytes[from..], &PREAMBLE_MAGIC) {
            Some(at) => {
                self.searched = from + at;
                Some(from + at)
            }
            None => {
                let tail = self.bytes.len().saturating_sub(PREAMBLE_MAGIC.len() - 1);
                self.searched = tail.max(from);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameKind, encode};
    use proptest::prelude::*;

    const NONCE_A: Nonce = [0x11; 16];
    const NONCE_B: Nonce = [0x5A; 16];

    fn data(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, FrameKind::Data, 0, 9, payload);
        out
    }

    fn inputs(wire: &[u8], cut: usize) -> Vec<String> {
        let mut decoder = GuestDecoder::default();
        let mut seen = Vec::new();
        for piece in wire.chunks(cut.max(1)) {
            decoder.push(piece);
            while let Some(input) = decoder.next_input() {
                seen.push(match input {
                    Input::Connected(nonce) => format!("connected {:02x}", nonce[0]),
                    Input::Frame(frame) => format!("data {}", String::from_utf8_lossy(frame.payload)),
                    Input::Lost(_) => "lost".to_owned(),
                });
            }
        }
        seen
    }

    #[test]
    fn the_preamble_magic_contains_no_frame_delimiters() {
        for byte in [0x00, crate::frame::FRAME_START, crate::frame::FRAME_END] {
            assert!(!PREAMBLE_MAGIC.contains(&byte));
        }
        assert!(std::str::from_utf8(&PREAMBLE_MAGIC).is_err());
    }

    #[test]
    fn garbage_before_the_preamble_is_discarded() {
        let wire = [b"\xff\xfePanda garbage \xff\xfe".to_vec(), preamble(&NONCE_A), data(b"x")].concat();
        for cut in 1..wire.len() {
            assert_eq!(inputs(&wire, cut), ["connected 11", "data x"], "cut {cut}");
        }
    }

    #[test]
    fn a_frame_cut_at_any_byte_is_never_completed_by_the_next_preamble() {
        let frame = data(&[b'q'; 70]);
        for kept in 0..frame.len() {
            let wire =
                [preamble(&NONCE_A), data(b"a"), frame[..kept].to_vec(), preamble(&NONCE_B), data(b"b")]
                    .concat();
            for cut in [1, 7, 16, 17, 48, wire.len()] {
                let seen: Vec<_> = inputs(&wire, cut).into_iter().filter(|input| input != "lost").collect();
                assert_eq!(
                    seen,
                    ["connected 11", "data a", "connected 5a", "data b"],
                    "kept {kept} cut {cut}"
                );
            }
        }
    }

    #[test]
    fn a_truncated_preamble_is_superseded_by_the_next() {
        let first = preamble(&NONCE_A);
        for kept in 0..first.len() {
            let wire = [first[..kept].to_vec(), preamble(&NONCE_B), data(b"b")].concat();
            for cut in [1, 5, 33, wire.len()] {
                assert_eq!(inputs(&wire, cut), ["connected 5a", "data b"], "kept {kept} cut {cut}");
            }
        }
    }

    #[test]
    fn the_ack_is_found_after_stale_bytes() {
        let stale = [ack(&NONCE_B), b"rubbish".to_vec()].concat();
        let wire = [stale.clone(), ack(&NONCE_A), b"rest".to_vec()].concat();
        assert_eq!(find_ack_end(&wire, &NONCE_A), Some(stale.len() + ACK_BYTES));
        assert_eq!(find_ack_end(&stale, &NONCE_A), None);
    }

    proptest! {
        #[test]
        fn stray_bytes_are_skipped(garbage in proptest::collection::vec(any::<u8>(), 0..400), cut in 1usize..80) {
            let wire = [garbage, preamble(&NONCE_A), data(b"ok")].concat();
            let seen = inputs(&wire, cut);
            prop_assert_eq!(&seen[seen.len() - 2..], ["connected 11", "data ok"]);
        }
    }
}
