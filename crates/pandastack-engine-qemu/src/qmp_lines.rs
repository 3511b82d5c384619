//! Splits the emulator's output into lines.

/// Bytes that were read, and how far they were taken apart. It holds one unfinished line and the last read.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Start of the next line.
    start: usize,
    /// Bytes already searched for the end of that line.
    searched: usize,
}

impl Lines {
    /// The buffer to read into. Lines that were taken are dropped here and not one by one: a read may hold a
    /// million short ones, and every drop moves what follows.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        &mut self.bytes
    }

    /// The next whole line, with its end.
    pub(crate) fn next_line(&mut self) -> Option<&[u8]> {
        let Some(at) = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let line = self.start..self.searched + at + 1;
        (self.start, self.searched) = (line.end, line.end);
        Some(&self.bytes[line])
    }

    /// Length of the unfinished line.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn lines_are_reassembled_from_chunks_of_any_size() {
        for piece_bytes in 1..8 {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in b"a\nbcd\r\n\nunfinished".chunks(piece_bytes) {
                lines.buffer().extend_from_slice(piece);
                while let Some(line) = lines.next_line() {
                    found.push(line.to_vec());
                }
            }
            assert_eq!(found, [&b"a\n"[..], b"bcd\r\n", b"\n"]);
            assert_eq!(lines.unfinished_bytes(), "unfinished".len());
        }
    }

    #[test]
    fn a_million_empty_lines_are_read_quickly() {
        let mut lines = Lines::default();
        lines.buffer().resize(1 << 20, b'\n');
        let began = Instant::now();
        assert_eq!(std::iter::from_fn(|| lines.next_line().map(drop)).count(), 1 << 20);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
