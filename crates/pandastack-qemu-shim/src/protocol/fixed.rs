//! Strings and lists of fixed capacity: one side of the protocol has no heap.

use super::Malformed;

/// A short byte string without heap: a path or a note.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// The empty text.
    pub const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// A copy of `bytes`; refused when it does not fit.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut text = Self::EMPTY;
        text.bytes.get_mut(..bytes.len()).ok_or(Malformed)?.copy_from_slice(bytes);
        text.len = bytes.len();
        Ok(text)
    }

    /// Appends what still fits.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
    }

    /// Appends a number.
    pub fn push_number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> core::fmt::Debug for Text<N> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{:?}", self.as_bytes().escape_ascii())
    }
}

impl<const N: usize> PartialEq for Text<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

/// A list without heap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct List<T: Copy, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> List<T, N> {
    /// No items.
    pub const EMPTY: Self = Self { items: [None; N], len: 0 };

    /// Adds one; refused when full.
    pub fn push(&mut self, item: T) -> Result<(), Malformed> {
        *self.items.get_mut(self.len).ok_or(Malformed)? = Some(item);
        self.len += 1;
        Ok(())
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    /// The one at `index`.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.items.get(index).and_then(Option::as_ref)
    }
}
