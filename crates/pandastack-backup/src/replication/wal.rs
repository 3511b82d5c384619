//! The stream of the WAL.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use pandastack_postgres::SqlError;

use super::{Replication, ReplicationError, refused_log, unexpected_response};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::position::{Lsn, Timeline, server_time, to_server_time};

const COMMAND: &str = "START_REPLICATION";

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalMessage {
    /// Bytes of the log.
    Data {
        /// Position of the first byte.
        start: Lsn,
        /// End of the server's log when it sent this.
        end_of_log: Lsn,
        /// When, by its clock.
        sent_at: Timestamp,
        /// The bytes.
        bytes: Bytes,
    },
    /// The server is alive, and has sent everything up to a position.
    Keepalive {
        /// The position.
        sent: Lsn,
        /// When, by its clock.
        sent_at: Timestamp,
        /// Whether the server requests an immediate status update.
        wants_status: bool,
    },
    /// The stream ended: the timeline ended, or the server stops. [`WalStream::finish`] returns
    /// which.
    Done,
}

/// The log, as the server writes it.
pub struct WalStream {
    replication: Replication,
    /// The server ended the copy and waits for our end of it.
    copy_done: bool,
    /// Last position received, for errors.
    last: Lsn,
}

impl WalStream {
    pub(super) fn new(replication: Replication, from: Lsn) -> Self {
        Self { replication, copy_done: false, last: from }
    }

    /// The next message. Cancel safe.
    pub async fn next(&mut self) -> Result<WalMessage, ReplicationError> {
        loop {
            let (kind, body) = self.replication.session.receive(MESSAGE_BYTES_MAX).await?;
            match kind {
                b'd' => {
                    let message =
                        parse(body).ok_or_else(|| unexpected_response(COMMAND, "half a message"))?;
                    if let WalMessage::Data { start, bytes, .. } = &message {
                        self.last = Lsn(start.0.saturating_add(bytes.len() as u64));
                    }
                    return Ok(message);
                }
                b'c' => {
                    self.copy_done = true;
                    return Ok(WalMessage::Done);
                }
                // A stopping server sends this without ending the copy.
                b'C' => return Ok(WalMessage::Done),
                b'E' => return Err(refused_log(self.last, SqlError::parse(&body))),
                _ => {}
            }
        }
    }

    /// Confirms the received and the durable position to the server, so that it can drop its log up
    /// to there. With `ask`, requests a reply.
    pub async fn confirm(&mut self, received: Lsn, durable: Lsn, ask: bool) -> Result<(), ReplicationError> {
        let mut message = BytesMut::with_capacity(39);
        message.put_u8(b'd');
        message.put_i32(4 + 1 + 8 * 4 + 1);
        message.put_u8(b'r');
        message.put_u64(received.0);
        message.put_u64(durable.0);
        // The applied position: this client applies nothing.
        message.put_u64(0);
        message.put_i64(to_server_time(Timestamp::now()));
        message.put_u8(u8::from(ask));
        Ok(self.replication.session.send(&message).await?)
    }

    /// Ends the stream. If its timeline has ended, returns the next one and its start.
    pub async fn finish(mut self) -> Result<StreamEnd, ReplicationError> {
        let mut message = BytesMut::new();
        postgres_protocol::message::frontend::copy_done(&mut message);
        self.replication.session.send(&message).await?;
        while !self.copy_done {
            // Skip messages in flight.
            let (kind, body) = self.replication.receive_in_time(COMMAND).await?;
            match kind {
                b'c' => self.copy_done = true,
                b'E' => return Err(refused_log(self.last, SqlError::parse(&body))),
                _ => {}
            }
        }
        StreamEnd::collect(self.replication).await
    }
}

/// The kind of stream that the server started.
pub enum ReplicationStart {
    /// More log follows.
    Streaming(WalStream),
    /// The timeline ended where the stream would begin.
    Ended(StreamEnd),
}

/// The end of a stream.
pub struct StreamEnd {
    /// The session, ready for the next command.
    pub replication: Replication,
    /// The timeline that follows, and where it begins.
    pub next: Option<(Timeline, Lsn)>,
}

impl StreamEnd {
    pub(super) async fn collect(mut replication: Replication) -> Result<Self, ReplicationError> {
        let rows = replication.collect_rows(COMMAND).await?;
        let next = match rows.first().map(Vec::as_slice) {
            Some([Some(timeline), Some(lsn), ..]) => {
                let parsed = timeline.parse().ok().zip(lsn.parse().ok());
                let (timeline, lsn) =
                    parsed.ok_or_else(|| unexpected_response(COMMAND, "an invalid next timeline"))?;
                Some((Timeline(timeline), lsn))
            }
            _ => None,
        };
        Ok(Self { replication, next })
    }
}

pub(crate) fn parse(mut body: Bytes) -> Option<WalMessage> {
    match body.try_get_u8().ok()? {
        b'w' => {
            let (start, end_of_log) = (Lsn(body.try_get_u64().ok()?), Lsn(body.try_get_u64().ok()?));
            let sent_at = server_time(body.try_get_i64().ok()?)?;
            Some(WalMessage::Data { start, end_of_log, sent_at, bytes: body })
        }
        b'k' => {
            let (sent, sent_at) = (Lsn(body.try_get_u64().ok()?), server_time(body.try_get_i64().ok()?)?);
            Some(WalMessage::Keepalive { sent, sent_at, wants_status: body.try_get_u8().ok()? != 0 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wal_messages_are_parsed() {
        let mut data = vec![b'w'];
        data.extend_from_slice(&16_u64.to_be_bytes());
        data.extend_from_slice(&20_u64.to_be_bytes());
        data.extend_from_slice(&0_i64.to_be_bytes());
        data.extend_from_slice(b"log");
        let sent_at: Timestamp = "2000-01-01T00:00:00Z".parse().unwrap();
        let bytes = Bytes::from_static(b"log");
        let expected = WalMessage::Data { start: Lsn(16), end_of_log: Lsn(20), sent_at, bytes };
        assert_eq!(parse(Bytes::from(data)), Some(expected));
        let mut alive = vec![b'k'];
        alive.extend_from_slice(&20_u64.to_be_bytes());
        alive.extend_from_slice(&0_i64.to_be_bytes());
        alive.push(1);
        let expected = WalMessage::Keepalive { sent: Lsn(20), sent_at, wants_status: true };
        assert_eq!(parse(Bytes::from(alive.clone())), Some(expected));
        for end in 0..alive.len() {
            assert_eq!(parse(Bytes::copy_from_slice(&alive[..end])), None);
        }
        assert_eq!(parse(Bytes::from_static(b"x")), None);
    }
}
