//! One connection to the runtime inside a function's machine: one call at a time, in frames.

use std::time::Duration;

use futures::FutureExt;
use pandastack_edge::{Edge, GuestStream, GuestTunnel};
use pandastack_function_proto::{
    Await, Call, End, FRAME_HEAD_BYTES, Head, Kind, PART_BYTES_MAX, PORT, Ready, Stream, decode_head,
    decode_json, encode_invoke, encode_json,
};
use pandastack_types::{Error, ErrorCode, Result, SandboxId};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// Bytes read ahead.
const BUFFER_BYTES: usize = 16 * 1024;
/// Longest time for the runtime of a new machine to accept a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(15);

/// A connection to a runtime, by default to a machine's.
pub(crate) struct Connection<S = GuestTunnel<GuestStream>> {
    stream: BufReader<S>,
    /// Name of the other end, for the log.
    name: String,
}

/// A frame from the runtime during a call.
pub(crate) enum RuntimeFrame {
    /// Output of the handler.
    Log(Stream, Vec<u8>),
    /// The answer begins.
    Head(Head),
    /// A part of it.
    Data(Vec<u8>),
    /// The call ended.
    End(End),
}

impl Connection {
    /// Connects to the runtime of a machine.
    pub(crate) async fn open(edge: &Edge, sandbox: &SandboxId) -> Result<Self> {
        let opened = tokio::time::timeout(CONNECT_WAIT, edge.tunnel(sandbox, PORT)).await;
        let late = |_| runtime_lost(sandbox.as_str(), "its runtime did not accept a connection in time");
        let stream =
            opened.map_err(late)?.map_err(|error| runtime_lost(sandbox.as_str(), &format!("{error:?}")))?;
        Ok(Self::over(stream, sandbox.as_str()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection to a runtime that was made elsewhere.
    pub(crate) fn over(stream: S, name: &str) -> Self {
        Self { stream: BufReader::with_capacity(BUFFER_BYTES, stream), name: name.to_owned() }
    }

    fn broken(&self, error: impl std::fmt::Display) -> Error {
        runtime_lost(&self.name, &error.to_string())
    }

    async fn send(&mut self, frame: &[u8]) -> Result<()> {
        let sent = self.stream.get_mut().write_all(frame).await;
        sent.map_err(|error| self.broken(error))
    }

    async fn receive(&mut self) -> Result<(Kind, Vec<u8>)> {
        let mut head = [0; FRAME_HEAD_BYTES];
        let read = self.stream.read_exact(&mut head).await;
        read.map_err(|error| self.broken(error))?;
        let (kind, length) = decode_head(head).map_err(|error| self.broken(error))?;
        let mut payload = vec![0; length];
        let read = self.stream.read_exact(&mut payload).await;
        read.map_err(|error| self.broken(error))?;
        Ok((kind, payload))
    }

    /// Waits until the handler is ready, or never will be.
    pub(crate) async fn await_ready(&mut self, wait: Duration) -> Result<Ready> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.send(&encode_json(Kind::Await, &Await { wait_ms })).await?;
        match self.receive().await? {
            (Kind::Ready, payload) => decode_json(&payload).map_err(|error| self.broken(error)),
            (kind, _) => Err(self.broken(format!("an unexpected frame ({kind:?})"))),
        }
    }

    /// Returns whether the connection can take a call: the runtime sends nothing between calls, so
    /// readable data is its end.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.stream.fill_buf().now_or_never().is_none()
    }

    /// Starts a call; [`Connection::next`] returns its result.
    pub(crate) async fn begin(&mut self, call: &Call, event: &[u8]) -> Result<()> {
        self.send(&encode_invoke(call, event)).await
    }

    /// The next frame. After [`RuntimeFrame::End`] another call may begin.
    pub(crate) async fn next(&mut self) -> Result<RuntimeFrame> {
        let (kind, payload) = self.receive().await?;
        let frame = match kind {
            Kind::Log => {
                let (stream, text) = payload.split_first().unwrap_or((&1, &[]));
                // Limits the length of a guest's message.
                let text = text.get(..text.len().min(PART_BYTES_MAX)).unwrap_or_default();
                RuntimeFrame::Log(Stream::of(*stream), text.to_vec())
            }
            Kind::Head => RuntimeFrame::Head(decode_json(&payload).map_err(|error| self.broken(error))?),
            Kind::Data => RuntimeFrame::Data(payload),
            Kind::End => RuntimeFrame::End(decode_json(&payload).map_err(|error| self.broken(error))?),
            Kind::Ready | Kind::Await | Kind::Invoke => {
                return Err(self.broken(format!("an unexpected frame ({kind:?})")));
            }
        };
        Ok(frame)
    }
}

/// The error for a call whose machine is lost.
pub(crate) fn runtime_lost(name: &str, why: &str) -> Error {
    tracing::info!(name, why, "a function's machine was lost");
    Error::new(
        ErrorCode::GuestUnavailable,
        "the machine of this call was lost before it responded, and the handler may have run; retry only if \
         it is \
         safe to run it twice",
    )
}
