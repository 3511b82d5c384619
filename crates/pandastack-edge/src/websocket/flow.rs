//! One direction of a WebSocket: relays bytes and tracks where frames end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::frames::Frames;
use crate::tunnel::UPGRADED_BUFFER_BYTES;

/// Bytes on their way from one side to the other.
pub(super) struct Flow {
    buffer: Box<[u8]>,
    /// Start of the bytes in `buffer` that were read and not written yet.
    start: usize,
    end: usize,
    /// Frames of the written data.
    frames: Frames,
    stage: Stage,
    is_flushed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Passing,
    /// One side has sent its last byte; the end is still to be forwarded.
    Ending,
    Over,
}

/// The close notice for the receiving side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseNotice {
    /// A close frame.
    Close,
    /// Send nothing: the last frame was a close frame; wait for its answer.
    Wait,
    /// Send nothing: the flow is within a frame, or has already ended.
    Nothing,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; UPGRADED_BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            frames: Frames::default(),
            stage: Stage::Passing,
            is_flushed: true,
        }
    }

    /// Records bytes that took another path.
    pub(super) fn note(&mut self, bytes: &[u8]) {
        self.frames.pass(bytes);
    }

    pub(super) fn parting(&self) -> CloseNotice {
        match self.stage {
            Stage::Passing if self.frames.has_closed() => CloseNotice::Wait,
            Stage::Passing if self.frames.is_between() => CloseNotice::Close,
            _ => CloseNotice::Nothing,
        }
    }

    /// Passes bytes until the end, and passes on the end too.
    pub(super) fn poll_pass(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        loop {
            if self.start < self.end {
                ready!(self.poll_write(context, to, self.end - self.start))?;
                continue;
            }
            match self.stage {
                Stage::Over => return Poll::Ready(Ok(())),
                Stage::Ending => {
                    ready!(Pin::new(&mut *to).poll_shutdown(context))?;
                    self.stage = Stage::Over;
                }
                Stage::Passing => match self.poll_read(context, from) {
                    Poll::Ready(read) => read?,
                    Poll::Pending => {
                        if !self.is_flushed {
                            ready!(Pin::new(&mut *to).poll_flush(context))?;
                            self.is_flushed = true;
                        }
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    /// Passes only the rest of the frame in progress. Fails if that has no end.
    pub(super) fn poll_end_frame(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while !self.frames.is_between() {
            if self.frames.is_lost() || (self.stage != Stage::Passing && self.start == self.end) {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            if self.start < self.end {
                let rest = self.frames.rest_within(&self.buffer[self.start..self.end]);
                ready!(self.poll_write(context, to, rest))?;
            } else {
                ready!(self.poll_read(context, from))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Drops received data until a close frame or the end.
    pub(super) async fn drop_until_close(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        self.frames.pass(&self.buffer[self.start..self.end]);
        while !self.frames.has_closed() {
            match from.read(&mut self.buffer).await? {
                0 => return Ok(()),
                read => self.frames.pass(&self.buffer[..read]),
            }
        }
        Ok(())
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(from).poll_read(context, &mut buffer))?;
        (self.start, self.end) = (0, buffer.filled().len());
        if self.end == 0 {
            self.stage = Stage::Ending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        to: &mut (impl AsyncWrite + Unpin),
        bytes_max: usize,
    ) -> Poll<io::Result<()>> {
        let bytes = &self.buffer[self.start..self.start + bytes_max];
        let written = ready!(Pin::new(to).poll_write(context, bytes))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.frames.pass(&bytes[..written]);
        self.start += written;
        self.is_flushed = false;
        Poll::Ready(Ok(()))
    }
}
