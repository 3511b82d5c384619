//! The handshake, and the identity that it carries.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::Semaphore;
use tokio::time::{Duration, Instant, timeout_at};

use super::call::{Call, Inbound, encode_request};
use super::error::ClientError;
use super::link::Connection;
use super::{GuestClient, LISTINGS_MAX};
use crate::frame::{FrameBuffer, FrameKind, encode};
use crate::limits::{FRAME_BYTES_MAX, RESYNC_DISCARD_BYTES_MAX};
use crate::message::{Hello, Identity, IdentityApplied, Request};
use crate::sync::{ACK_BYTES, NONCE_BYTES, Nonce, find_ack_end, preamble};
use crate::{GENERATION, GENERATION_OLDEST};

impl GuestClient {
    /// Connects to a guest over the host's end of its channel, which may hold stale bytes. Waits for a guest
    /// that is still booting, at most until the deadline has passed.
    ///
    /// # Errors
    /// When the guest does not respond in time, is too old, or does not speak the protocol.
    pub async fn connect(stream: UnixStream, deadline: Duration) -> Result<Self, ClientError> {
        let (client, _) = connect_with(stream, deadline, &[]).await?;
        Ok(client)
    }

    /// Connects and sets the machine's identity in one round trip: preamble, hello and identity are sent
    /// together. This is the path of every create and fork.
    ///
    /// # Errors
    /// As [`GuestClient::connect`], and when the guest could not take the identity on.
    pub async fn connect_with_identity(
        stream: UnixStream,
        identity: Identity,
        deadline: Duration,
    ) -> Result<(Self, IdentityApplied), ClientError> {
        let give_up = Instant::now() + deadline;
        let request = Request::SetIdentity(identity);
        let (client, mut calls) = connect_with(stream, deadline, &[request]).await?;
        let Some(mut call) = calls.pop() else {
            return Err(ClientError::disconnected("the identity call was lost"));
        };
        let applied = match timeout_at(give_up, call.next()).await {
            Ok(Ok(Inbound::Reply(reply))) => call.finish(&reply)?,
            Ok(Ok(Inbound::Event(_) | Inbound::Data { .. })) => {
                return Err(call.protocol_violation("sent more than a reply"));
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(ClientError::ConnectDeadline { waited: deadline }),
        };
        Ok((client, applied))
    }
}

async fn connect_with(
    stream: UnixStream,
    deadline: Duration,
    requests: &[Request],
) -> Result<(GuestClient, Vec<Call>), ClientError> {
    let give_up = Instant::now() + deadline;
    let (mut read, mut write) = stream.into_split();
    let nonce = fresh_nonce()?;
    let opening = opening_bytes(&nonce, requests)?;
    let handshake = async {
        let sent = async { write.write_all(&opening).await.map_err(ClientError::disconnected) };
        // Both at once: a guest with a lot of stale output must be drained before it reads.
        let ((), (buffer, hello)) = tokio::try_join!(sent, read_hello(&mut read, &nonce))?;
        Ok::<_, ClientError>((buffer, hello))
    };
    let (buffer, hello) = match timeout_at(give_up, handshake).await {
        Ok(done) => done?,
        Err(_) => return Err(ClientError::ConnectDeadline { waited: deadline }),
    };
    if hello.generation < GENERATION_OLDEST {
        return Err(ClientError::Generation { guest: hello.generation, oldest: GENERATION_OLDEST });
    }
    let first = u32::try_from(requests.len()).unwrap_or(u32::MAX);
    let (connection, opened) = Connection::start(read, write, buffer, first);
    let calls = opened.into_iter().map(|opened| Call::adopt(connection.clone(), opened)).collect();
    let listings = Arc::new(Semaphore::new(LISTINGS_MAX));
    Ok((GuestClient { connection, hello: hello.into(), listings }, calls))
}

fn fresh_nonce() -> Result<Nonce, ClientError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| ClientError::Random(error.to_string()))?;
    Ok(nonce)
}

/// Preamble, hello, and requests numbered from 1, in one piece.
fn opening_bytes(nonce: &Nonce, requests: &[Request]) -> Result<Vec<u8>, ClientError> {
    let mut bytes = preamble(nonce);
    let hello = Hello {
        generation: GENERATION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: String::new(),
    };
    let hello = serde_json::to_vec(&hello).map_err(|error| ClientError::Protocol(error.to_string()))?;
    encode(&mut bytes, FrameKind::Hello, 0, 0, &hello);
    for (id, request) in (1..).zip(requests) {
        encode(&mut bytes, FrameKind::Request, 0, id, &encode_request(request)?);
    }
    Ok(bytes)
}

/// Throws stale bytes away up to the echo of `nonce`, then reads the guest's hello.
async fn read_hello(read: &mut OwnedReadHalf, nonce: &Nonce) -> Result<(FrameBuffer, Hello), ClientError> {
    let mut buffer = FrameBuffer::default();
    buffer.push(&read_past_ack(read, nonce).await?);
    let mut bytes = vec![0; FRAME_BYTES_MAX];
    loop {
        if let Some(frame) = buffer.next_frame()? {
            if frame.kind != FrameKind::Hello {
                return Err(ClientError::Protocol(format!("a {:?} frame came before the hello", frame.kind)));
            }
            let hello = serde_json::from_slice(frame.payload)
                .map_err(|error| ClientError::Protocol(format!("the hello cannot be read: {error}")))?;
            return Ok((buffer, hello));
        }
        let count = read_some(read, &mut bytes).await?;
        buffer.push(&bytes[..count]);
    }
}

/// Reads up to the echo of the nonce; returns the bytes that follow it.
async fn read_past_ack(read: &mut OwnedReadHalf, nonce: &Nonce) -> Result<Vec<u8>, ClientError> {
    let mut kept = Vec::new();
    let mut discarded = 0;
    let mut bytes = vec![0; FRAME_BYTES_MAX];
    loop {
        let count = read_some(read, &mut bytes).await?;
        kept.extend_from_slice(&bytes[..count]);
        if let Some(end) = find_ack_end(&kept, nonce) {
            return Ok(kept.split_off(end));
        }
        let stale = kept.len().saturating_sub(ACK_BYTES - 1);
        kept.drain(..stale);
        discarded += stale;
        if discarded > RESYNC_DISCARD_BYTES_MAX {
            let what = format!("{discarded} bytes came without an answer to the preamble");
            return Err(ClientError::Protocol(what));
        }
    }
}

async fn read_some(read: &mut OwnedReadHalf, bytes: &mut [u8]) -> Result<usize, ClientError> {
    match read.read(bytes).await {
        Ok(0) => Err(ClientError::disconnected("the channel was closed during the handshake")),
        Ok(count) => Ok(count),
        Err(error) => Err(ClientError::disconnected(error)),
    }
}
