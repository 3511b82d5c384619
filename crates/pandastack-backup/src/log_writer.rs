//! Writes WAL to the archive: tracks archived and pending WAL, and merges pieces into segments.
//!
//! ```text
//!   segment:  [ piece, level 2 ][ piece, 1 ][ piece, 0 ][ piece, 0 ] | waiting |        16 MiB
//!                                                                    ^ archived
//! ```
//!
//! Must hold: `archived` moves only after everything before it is durable in the archive; a
//! server's log must continue the archived log exactly, or it is refused. See
//! [`layout`](crate::layout) for the reason for pieces.

use bytes::{Buf, Bytes, BytesMut};
use jiff::Timestamp;
use pandastack_types::chain;

use crate::archive::{Archive, ArchiveError};
use crate::layout::{Entry, Piece};
use crate::limits::{MERGE_PIECES, PROOF_BYTES, SEGMENT_BYTES};
use crate::position::{Lsn, Segment, Timeline};
use crate::window::cover;

/// Writes WAL to the end of the archive.
#[derive(Debug)]
pub(crate) struct LogWriter {
    archive: Archive,
    timeline: Timeline,
    archived: Lsn,
    /// Received after `archived`.
    waiting: BytesMut,
    /// Pieces of the segment of `archived`, in order, each with its merge level.
    pieces: Vec<(Piece, u32)>,
    /// The last bytes before `archived`, with which a server proves that it is the same.
    proof: Bytes,
    /// Bytes of the proof that the server has still to send.
    unproven: usize,
    /// The received log has every commit up to this time of the server's clock.
    complete_until: Timestamp,
    /// When the server answered last, if it has sent no log since.
    answered_at: Option<Timestamp>,
    /// End of the server's log, as last reported.
    known_end: Lsn,
}

/// Reason why the log cannot be archived.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The server's log is another one.
    #[error(
        "the server's log at {at} is not the one in the archive: the database was put back to an earlier state or replaced; \
         archive it under a new id, beginning with a base backup"
    )]
    Diverged {
        /// Position of the difference.
        at: Lsn,
    },
    /// The server skipped data.
    #[error("the server sent WAL from {sent} on, but {expected} was expected")]
    Hole {
        /// The expected position.
        expected: Lsn,
        /// The received position.
        sent: Lsn,
    },
}

impl LogWriter {
    /// Starts an archive at the segment of a position.
    pub(crate) fn begin(archive: Archive, timeline: Timeline, at: Lsn) -> Self {
        Self {
            archive,
            timeline,
            archived: at.segment_start(),
            waiting: BytesMut::new(),
            pieces: Vec::new(),
            proof: Bytes::new(),
            unproven: 0,
            complete_until: Timestamp::UNIX_EPOCH,
            answered_at: None,
            known_end: Lsn(0),
        }
    }

    /// Finds the end of the archive; `None` if it has no log.
    pub(crate) async fn resume(archive: &Archive) -> Result<Option<Self>, ArchiveError> {
        let (mut segments, mut pieces) = (Vec::new(), Vec::new());
        for listed in archive.list().await? {
            match listed.entry {
                Entry::Segment(segment) => segments.push(segment),
                Entry::Piece(piece) => pieces.push(piece),
                _ => {}
            }
        }
        let last = segments.iter().copied().chain(pieces.iter().map(|piece| piece.segment)).max();
        let Some(segment) = last else { return Ok(None) };
        let mut writer = Self::begin(archive.clone(), segment.timeline, segment.start());
        let end = if segments.contains(&segment) {
            writer.archived = Lsn(segment.start().0 + SEGMENT_BYTES);
            Entry::Segment(segment)
        } else {
            pieces.retain(|piece| piece.segment == segment);
            let chain = cover(&pieces);
            // Pieces without their predecessors are useless, and are received again.
            let Some(last) = chain.last() else { return Ok(Some(writer)) };
            writer.archived = Lsn(segment.start().0 + u64::from(last.to));
            writer.pieces = chain.iter().map(|piece| (*piece, 0)).collect();
            Entry::Piece(*last)
        };
        let end = archive.get(&end).await?;
        writer.complete_until = end.time;
        writer.keep_proof(&end.plain);
        Ok(Some(writer))
    }

    /// Everything before it is durable in the archive.
    pub(crate) fn archived(&self) -> Lsn {
        self.archived
    }

    /// Everything before it was received.
    pub(crate) fn received(&self) -> Lsn {
        Lsn(self.archived.0 + self.waiting.len() as u64)
    }

    /// The line of history that is written.
    pub(crate) fn timeline(&self) -> Timeline {
        self.timeline
    }

    /// Every commit up to this time of the server's was received, if there ever was a moment without more to receive.
    pub(crate) fn complete_until(&self) -> Option<Timestamp> {
        Some(self.complete_until).filter(|until| *until > Timestamp::UNIX_EPOCH)
    }

    /// Records that the server had nothing more to send at a time.
    pub(crate) fn note_complete(&mut self, until: Timestamp) {
        self.complete_until = self.complete_until.max(until);
    }

    /// Records a reply of the server. The server replies before it looks for more log to send: only
    /// the next reply, without log before it, proves that the log was complete at this reply's
    /// time.
    pub(crate) fn note_answer(&mut self, at: Timestamp) {
        if let Some(before) = self.answered_at.replace(at) {
            self.note_complete(before);
        }
    }

    /// Records how far the server's log goes.
    pub(crate) fn note_end(&mut self, end_of_log: Lsn) {
        self.known_end = self.known_end.max(end_of_log);
    }

    /// Returns whether bytes wait to be archived.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes that the server is known to have and the archive has not.
    pub(crate) fn lag_bytes(&self) -> u64 {
        self.known_end.0.saturating_sub(self.archived.0)
    }

    /// Returns whether a segment is full, so that it can be archived immediately.
    pub(crate) fn is_segment_full(&self) -> bool {
        self.waiting.len() as u64 >= SEGMENT_BYTES - self.archived.offset()
    }

    /// Discards log that was received but not archived. A new stream starts at the returned
    /// position: a little before the end, so that the server proves that it has the same log, but
    /// not before the segment, which is the first one that the slot retains.
    pub(crate) fn rewind(&mut self) -> Lsn {
        self.waiting.clear();
        self.answered_at = None;
        let here = usize::try_from(self.archived.offset()).unwrap_or(usize::MAX);
        self.unproven = self.proof.len().min(here);
        Lsn(self.archived.0 - self.unproven as u64)
    }

    /// Switches to the next timeline. Its first segment begins with a copy of the last one's.
    pub(crate) fn switch(&mut self, timeline: Timeline, at: Lsn) {
        let complete_until = self.complete_until;
        *self = Self { complete_until, ..Self::begin(self.archive.clone(), timeline, at) };
    }

    /// Accepts WAL that the server sent.
    pub(crate) fn push(&mut self, start: Lsn, mut bytes: Bytes) -> Result<(), LogError> {
        let expected = Lsn(self.received().0 - self.unproven as u64);
        if start != expected {
            return Err(LogError::Hole { expected, sent: start });
        }
        let again = self.unproven.min(bytes.len());
        let begin = self.proof.len() - self.unproven;
        if self.proof[begin..begin + again] != bytes[..again] {
            return Err(LogError::Diverged { at: start });
        }
        self.unproven -= again;
        self.answered_at = None;
        bytes.advance(again);
        self.waiting.extend_from_slice(&bytes);
        Ok(())
    }

    /// Archives everything that is pending. A failed write can be retried, or its bytes received again.
    pub(crate) async fn flush(&mut self) -> Result<(), ArchiveError> {
        while !self.waiting.is_empty() {
            let room = usize::try_from(SEGMENT_BYTES - self.archived.offset()).unwrap_or(usize::MAX);
            let bytes = Bytes::copy_from_slice(&self.waiting[..room.min(self.waiting.len())]);
            if bytes.len() == room {
                self.put_segment(&bytes).await?;
            } else {
                self.put_piece(bytes.clone()).await?;
            }
            self.archived.0 += bytes.len() as u64;
            self.waiting.advance(bytes.len());
            self.keep_proof(&bytes);
        }
        Ok(())
    }

    async fn put_segment(&mut self, end: &Bytes) -> Result<(), ArchiveError> {
        let segment = Segment::at(self.timeline, self.archived);
        let pieces: Vec<_> = self.pieces.iter().map(|(piece, _)| *piece).collect();
        let mut whole = join(&self.archive, &pieces).await?;
        whole.extend_from_slice(end);
        self.archive.put(&Entry::Segment(segment), self.complete_until, whole.freeze()).await?;
        self.pieces.clear();
        self.remove(&pieces).await;
        Ok(())
    }

    async fn put_piece(&mut self, bytes: Bytes) -> Result<(), ArchiveError> {
        let segment = Segment::at(self.timeline, self.archived);
        let from = self.archived.offset();
        let to = from + bytes.len() as u64;
        let piece = Piece { segment, from: within(from), to: within(to) };
        self.archive.put(&Entry::Piece(piece), self.complete_until, bytes).await?;
        self.pieces.push((piece, 0));
        if let Err(error) = self.merge().await {
            // No data is missing; the archive only has more pieces than it should. The next piece
            // retries.
            tracing::warn!(error = %chain(&error), "cannot merge pieces of WAL");
        }
        Ok(())
    }

    /// Makes one of the last pieces while there are enough of one level.
    async fn merge(&mut self) -> Result<(), ArchiveError> {
        loop {
            let Some(begin) = self.pieces.len().checked_sub(MERGE_PIECES) else { return Ok(()) };
            let (first, level) = self.pieces[begin];
            if self.pieces[begin..].iter().any(|(_, other)| *other != level) {
                return Ok(());
            }
            let merged: Vec<_> = self.pieces[begin..].iter().map(|(piece, _)| *piece).collect();
            let to = merged.last().map_or(first.to, |last| last.to);
            let whole = Piece { to, ..first };
            let bytes = join(&self.archive, &merged).await?.freeze();
            self.archive.put(&Entry::Piece(whole), self.complete_until, bytes).await?;
            self.pieces.truncate(begin);
            self.pieces.push((whole, level + 1));
            self.remove(&merged).await;
        }
    }

    /// Removes pieces. If that fails, the retention removes them later, because other objects cover
    /// them.
    async fn remove(&self, pieces: &[Piece]) {
        for piece in pieces {
            if let Err(error) = self.archive.remove(&Entry::Piece(*piece)).await {
                tracing::debug!(error = %chain(&error), "cannot delete an unused piece of WAL");
            }
        }
    }

    fn keep_proof(&mut self, bytes: &[u8]) {
        self.proof = Bytes::copy_from_slice(&bytes[bytes.len().saturating_sub(PROOF_BYTES)..]);
    }
}

/// The bytes of pieces that follow, or overlap, each other.
pub(crate) async fn join(archive: &Archive, pieces: &[Piece]) -> Result<BytesMut, ArchiveError> {
    let mut whole = BytesMut::new();
    let Some(first) = pieces.first() else { return Ok(whole) };
    for piece in pieces {
        let bytes = archive.get(&Entry::Piece(*piece)).await?.plain;
        let known = whole.len().saturating_sub((piece.from - first.from) as usize);
        whole.extend_from_slice(bytes.get(known..).unwrap_or_default());
    }
    Ok(whole)
}

/// An offset in a segment, which is smaller than 2^24.
fn within(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
