//! All output of a command: kept within a budget, and answered piece by piece.
//!
//! Output is kept as the bytes that the guest wrote, in blocks that end between two characters. JSON of
//! binary output has up to six bytes for each of them, so a block becomes text only when the caller takes
//! it, and is dropped then.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use pandastack_guest_proto::client::ProcessEvent;
use pandastack_guest_proto::message::{ExitStatus, OutputStream};
use pandastack_types::api::ExecResult;
use pandastack_types::limits::{EXEC_OUTPUT_BYTES_MAX, OUTPUT_BYTES_FREE};

use crate::budget::OutputLease;
use crate::process::events::incomplete_suffix;

/// Bytes of a block, which are counted together.
const BLOCK_BYTES: usize = 64 * 1024;
/// Bytes that a stream has room for at first.
const FIRST_BYTES: usize = 1024;
/// Bytes of the longest character.
const CHARACTER_BYTES_MAX: usize = 4;
/// Largest response that is sent in one piece.
const WHOLE_BYTES_MAX: u64 = 64 * 1024;

const BEFORE_STDOUT: &str = r#"{"stdout":""#;
const BEFORE_STDERR: &str = r#"","stderr":""#;

/// Output of a command that runs.
pub(crate) struct ExecOutput {
    stdout: Kept,
    stderr: Kept,
    lease: OutputLease,
    truncated: bool,
}

impl ExecOutput {
    /// Collects all output within the limits, or only the last `last_bytes` of each stream.
    pub(crate) fn new(lease: OutputLease, last_bytes: Option<usize>) -> Self {
        let kept = || Kept { last_bytes, ..Kept::default() };
        Self { stdout: kept(), stderr: kept(), lease, truncated: false }
    }

    /// Stores a process's output, within the budget; returns the exit status at the end.
    pub(crate) fn take(&mut self, event: ProcessEvent) -> Option<ExitStatus> {
        match event {
            ProcessEvent::Output { stream, bytes, .. } => {
                let kept = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                self.truncated |= !kept.push(&bytes, &mut self.lease);
                None
            }
            ProcessEvent::Gap { .. } => {
                self.truncated = true;
                None
            }
            ProcessEvent::Exit(exit) => Some(exit),
        }
    }

    /// The answer: an [`ExecResult`].
    pub(crate) fn into_response(mut self, exit: &ExitStatus) -> Result<Response, serde_json::Error> {
        let is_cut = [&mut self.stdout, &mut self.stderr].map(Kept::cut_front).contains(&true);
        let rest = ExecResult {
            stdout: String::new(),
            stderr: String::new(),
            exit_code: exit.shell_code(),
            signal: exit.signal,
            duration_ms: exit.duration_ms,
            duration_us: exit.duration_us.unwrap_or(exit.duration_ms * 1000),
            truncated: self.truncated || is_cut,
        };
        let rest = serde_json::to_string(&rest)?.split_off(BEFORE_STDOUT.len() + BEFORE_STDERR.len());
        let framing = BEFORE_STDOUT.len() + BEFORE_STDERR.len() + rest.len();
        let length = self.stdout.text_bytes() + self.stderr.text_bytes() + framing as u64;
        let pieces = self.pieces(rest);
        let body = match length <= WHOLE_BYTES_MAX {
            true => Body::from(pieces.flatten().collect::<Vec<u8>>()),
            false => Body::from_stream(futures::stream::iter(pieces.map(Ok::<_, Infallible>))),
        };
        let mut response = body.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        Ok(response)
    }

    fn pieces(self, rest: String) -> impl Iterator<Item = Bytes> + Send + 'static {
        let Self { stdout, stderr, mut lease, .. } = self;
        let fixed = |text: &'static str| std::iter::once(Piece::Text(Bytes::from_static(text.as_bytes())));
        fixed(BEFORE_STDOUT)
            .chain(stdout.blocks.into_iter().map(Piece::Block))
            .chain(fixed(BEFORE_STDERR))
            .chain(stderr.blocks.into_iter().map(Piece::Block))
            .chain(std::iter::once(Piece::Text(Bytes::from(rest))))
            .map(move |piece| match piece {
                Piece::Text(text) => text,
                Piece::Block(block) => {
                    let text = escaped(&block);
                    give_back(&block, &mut lease);
                    text
                }
            })
    }
}

enum Piece {
    Text(Bytes),
    Block(Vec<u8>),
}

/// Output of one stream.
#[derive(Default)]
struct Kept {
    blocks: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Only as many bytes are wanted, those at the end.
    last_bytes: Option<usize>,
    /// Output was dropped; all later output is dropped too.
    full: bool,
}

impl Kept {
    /// Keeps bytes; returns false if some were dropped.
    fn push(&mut self, mut bytes: &[u8], lease: &mut OutputLease) -> bool {
        let mut all_kept = true;
        let mut is_over = false;
        if self.last_bytes.is_none() {
            let room = EXEC_OUTPUT_BYTES_MAX - self.bytes;
            is_over = bytes.len() > room;
            bytes = &bytes[..bytes.len().min(room)];
        }
        while !bytes.is_empty() && !self.full {
            let free = self.blocks.back().map_or(0, |last| match is_counted(last) {
                true => BLOCK_BYTES - last.len(),
                false => OUTPUT_BYTES_FREE - last.len(),
            });
            let Some(last) = self.blocks.back_mut().filter(|_| free > 0) else {
                all_kept &= self.add_block(lease);
                continue;
            };
            let (now, later) = bytes.split_at(bytes.len().min(free));
            last.extend_from_slice(now);
            self.bytes += now.len();
            bytes = later;
        }
        self.full |= is_over;
        all_kept && !self.full
    }

    /// Starts a block with the character that did not fit into the last one. Returns false if that
    /// dropped bytes: at the front if `last_bytes` is set, else all that follow.
    fn add_block(&mut self, lease: &mut OutputLease) -> bool {
        let Some(last) = self.blocks.back_mut() else {
            self.blocks.push_back(Vec::with_capacity(FIRST_BYTES));
            return true;
        };
        let begun = last.split_off(last.len() - incomplete_suffix(last));
        let mut all_kept = true;
        while self.blocks.len() > 1
            && self.last_bytes.is_some_and(|wanted| self.bytes >= wanted + self.front_bytes())
        {
            self.drop_front(lease);
            all_kept = false;
        }
        let mut has_room = lease.take(BLOCK_BYTES).is_ok();
        while !has_room && self.last_bytes.is_some() && self.blocks.len() > 1 {
            self.drop_front(lease);
            all_kept = false;
            has_room = lease.take(BLOCK_BYTES).is_ok();
        }
        if !has_room {
            self.blocks.back_mut().into_iter().for_each(|last| last.extend_from_slice(&begun));
            match self.last_bytes {
                Some(_) => self.halve_last(),
                None => self.full = true,
            }
            return false;
        }
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(&begun);
        self.blocks.push_back(block);
        all_kept
    }

    /// Drops the first half of the last block: callers need the end of the output, and the budget
    /// has no room for another block.
    fn halve_last(&mut self) {
        if let Some(last) = self.blocks.back_mut() {
            let half = last.len() / 2;
            let cut = half + rest_of_character(&last[half..]);
            last.drain(..cut);
            self.bytes -= cut;
        }
    }

    fn front_bytes(&self) -> usize {
        self.blocks.front().map_or(0, Vec::len)
    }

    fn drop_front(&mut self, lease: &mut OutputLease) {
        if let Some(front) = self.blocks.pop_front() {
            self.bytes -= front.len();
            give_back(&front, lease);
        }
    }

    /// Drops output before the last `last_bytes`, on a character boundary; returns whether any was
    /// dropped.
    fn cut_front(&mut self) -> bool {
        let mut beyond = self.last_bytes.map_or(0, |wanted| self.bytes.saturating_sub(wanted));
        if beyond == 0 {
            return false;
        }
        while let Some(front) = self.blocks.pop_front_if(|front| front.len() <= beyond) {
            beyond -= front.len();
        }
        if let Some(front) = self.blocks.front_mut() {
            let rest = rest_of_character(&front[beyond..]);
            front.drain(..beyond + rest);
        }
        true
    }

    /// Bytes of its JSON, without quotes.
    fn text_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| escaped_len(block)).sum()
    }
}

/// Bytes at the front that belong to a character which began before them.
fn rest_of_character(bytes: &[u8]) -> usize {
    let is_inside = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    bytes.iter().take(CHARACTER_BYTES_MAX - 1).take_while(is_inside).count()
}

/// Returns a block's bytes to the budget; the first block of a stream is free.
fn give_back(block: &Vec<u8>, lease: &mut OutputLease) {
    if is_counted(block) {
        lease.give_back(BLOCK_BYTES);
    }
}

fn is_counted(block: &Vec<u8>) -> bool {
    block.capacity() >= BLOCK_BYTES
}

/// The inside of a JSON string.
fn escaped(block: &[u8]) -> Bytes {
    // Text always encodes.
    let text = serde_json::to_vec(&String::from_utf8_lossy(block)).unwrap_or_default();
    let end = text.len().saturating_sub(1);
    Bytes::from(text).slice(end.min(1)..end)
}

/// The length of [`escaped`].
fn escaped_len(block: &[u8]) -> u64 {
    let of_byte = |byte: u8| match byte {
        b'"' | b'\\' | 0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    let of_chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let replaced = if chunk.invalid().is_empty() { 0 } else { char::REPLACEMENT_CHARACTER.len_utf8() };
        chunk.valid().bytes().map(of_byte).sum::<u64>() + replaced as u64
    };
    block.utf8_chunks().map(of_chunk).sum()
}

#[cfg(test)]
mod tests;
