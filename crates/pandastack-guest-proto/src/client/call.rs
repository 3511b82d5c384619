//! One call: a request, its replies, and its cancellation.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};

use super::error::ClientError;
use super::link::{Connection, ReservedStream};
use crate::frame::{FrameKind, data_chunks, encode};
use crate::limits::{REQUEST_BYTES_MAX, STREAM_WINDOW_BYTES, frame_charge};
use crate::message::{Event, Reply, Request};

/// Consumed bytes are granted back in steps of this size: often enough that the guest never waits for
/// a reader that keeps up, rarely enough that grants are not half the traffic.
const GRANT_STEP_BYTES: u32 = STREAM_WINDOW_BYTES / 4;

/// An incoming message of a call.
#[derive(Debug)]
pub(super) enum Inbound {
    Event(Bytes),
    Data { flags: u8, bytes: Bytes },
    Reply(Bytes),
}

/// An open call. Dropping it before its reply cancels it.
pub(super) struct Call {
    connection: Arc<Connection>,
    id: u32,
    queue: mpsc::Receiver<Inbound>,
    send_credit: Arc<Semaphore>,
    consumed: u32,
    done: bool,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("id", &self.id).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Call {
    /// Sends a request.
    pub(super) async fn open(connection: &Arc<Connection>, request: &Request) -> Result<Self, ClientError> {
        let payload = encode_request(request)?;
        let opened = connection.shared.reserve()?;
        let mut frame = Vec::new();
        encode(&mut frame, FrameKind::Request, 0, opened.id, &payload);
        let call = Self::adopt(Arc::clone(connection), opened);
        // If this future is dropped while it waits, dropping `call` sends a cancel for a call that
        // the guest never received; the guest ignores it, so no reply would ever free the slot.
        let unsent = ReleaseUnsent { call: &call, armed: true };
        connection.shared.send(frame).await?;
        unsent.disarm();
        Ok(call)
    }

    /// Takes over a call whose request was already sent.
    pub(super) fn adopt(connection: Arc<Connection>, opened: ReservedStream) -> Self {
        let ReservedStream { id, queue, send_credit } = opened;
        Self { connection, id, queue, send_credit, consumed: 0, done: false }
    }

    /// The next message. The reply is the last one.
    pub(super) async fn next(&mut self) -> Result<Inbound, ClientError> {
        let Some(inbound) = self.queue.recv().await else {
            self.done = true;
            return Err(self.connection.shared.closed().await);
        };
        match &inbound {
            Inbound::Reply(_) => self.done = true,
            Inbound::Event(bytes) | Inbound::Data { bytes, .. } => {
                self.consumed = self.consumed.saturating_add(frame_charge(bytes.len()));
                if self.consumed >= GRANT_STEP_BYTES {
                    self.connection.shared.grant(self.id, self.consumed);
                    self.consumed = 0;
                }
            }
        }
        Ok(inbound)
    }

    /// Sends raw bytes within the guest's credit. Fails silently if the guest has already replied:
    /// the reply has the reason.
    pub(super) async fn send_data(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        for chunk in data_chunks(bytes) {
            match self.send_credit.acquire_many(frame_charge(chunk.len())).await {
                Ok(permit) => permit.forget(),
                Err(_) => return Ok(()),
            }
            let mut frame = Vec::new();
            encode(&mut frame, FrameKind::Data, 0, self.id, chunk);
            self.connection.shared.send(frame).await?;
        }
        Ok(())
    }

    /// Ends the data.
    pub(super) async fn send_end(&mut self) -> Result<(), ClientError> {
        let mut frame = Vec::new();
        encode(&mut frame, FrameKind::End, 0, self.id, &[]);
        self.connection.shared.send(frame).await
    }

    /// Reads the reply's content.
    pub(super) fn finish<T: DeserializeOwned>(&self, reply: &[u8]) -> Result<T, ClientError> {
        match serde_json::from_slice(reply) {
            Ok(Reply::Ok(value)) => Ok(value),
            Ok(Reply::Error(body)) => Err(ClientError::Refused(body)),
            Err(error) => Err(self.protocol_violation(&format!("sent a reply that cannot be read: {error}"))),
        }
    }

    pub(super) fn parse_event(&self, event: &[u8]) -> Result<Event, ClientError> {
        serde_json::from_slice(event)
            .map_err(|error| self.protocol_violation(&format!("sent an event that cannot be read: {error}")))
    }

    pub(super) fn protocol_violation(&self, what: &str) -> ClientError {
        ClientError::Protocol(format!("call {}: the guest {what}", self.id))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.done {
            self.connection.shared.cancel(self.id);
        }
    }
}

struct ReleaseUnsent<'a> {
    call: &'a Call,
    armed: bool,
}

impl ReleaseUnsent<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for ReleaseUnsent<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.call.connection.shared.release(self.call.id);
        }
    }
}

pub(super) fn encode_request(request: &Request) -> Result<Vec<u8>, ClientError> {
    let payload = serde_json::to_vec(request).map_err(|error| ClientError::Protocol(error.to_string()))?;
    if payload.len() > REQUEST_BYTES_MAX {
        return Err(ClientError::RequestTooLong { bytes: payload.len(), max: REQUEST_BYTES_MAX });
    }
    Ok(payload)
}
