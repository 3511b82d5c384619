//! Relays a session between client and server, and tracks whether a query is in progress.
//!
//! Until the first `ReadyForQuery` the server's messages are read one by one, because the numbers
//! for cancel requests are replaced; after that bytes pass unchanged, except errors that the
//! platform adds to. A session is busy from a client's request to its `ReadyForQuery`, and while a
//! transaction is open. A session that is not busy is closed when the machine is about to stop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::backend::{Backend, Databases, InUse};
use crate::cancel::{CancelEntry, CancelTable};
use crate::endpoint::Endpoint;
use crate::errors::{Errors, Piece, code_of, explain, with_hint};
use crate::limits::RELAY_BUFFER_BYTES;
use crate::wire::{Fatal, Frames, IDLE, MessageHead, message, read_message};

/// The work in progress on a session.
struct Work {
    in_use: Box<dyn InUse>,
    /// Requests without their `ReadyForQuery`; the login is the first.
    unanswered: u64,
    in_transaction: bool,
    /// The server is receiving rows (`COPY`): it ignores synchronization requests during that.
    copying_in: bool,
    busy: bool,
}

struct Shared {
    work: Mutex<Work>,
    /// Notified when a session has nothing in progress any more.
    idle: Notify,
}

impl Shared {
    fn new(mut in_use: Box<dyn InUse>) -> Self {
        in_use.set_busy(true);
        let work = Work { in_use, unanswered: 1, in_transaction: false, copying_in: false, busy: true };
        Self { work: Mutex::new(work), idle: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_client_message(&self, seen: MessageHead) {
        let mut work = self.lock();
        match seen.kind {
            b'Q' | b'F' => work.unanswered += 1,
            b'S' if !work.copying_in => work.unanswered += 1,
            b'c' | b'f' => work.copying_in = false,
            _ => {}
        }
        work.settle();
    }

    fn on_server_message(&self, seen: MessageHead) {
        let mut work = self.lock();
        match seen.kind {
            b'Z' => {
                work.unanswered = work.unanswered.saturating_sub(1);
                work.in_transaction = seen.first != Some(IDLE);
                work.copying_in = false;
            }
            b'G' => work.copying_in = true,
            b'E' => work.copying_in = false,
            _ => {}
        }
        if !work.settle() {
            self.idle.notify_one();
        }
    }

    async fn wait_idle(&self) {
        while self.lock().busy {
            self.idle.notified().await;
        }
    }
}

impl Work {
    fn settle(&mut self) -> bool {
        let busy = self.unanswered > 0 || self.in_transaction;
        if busy != self.busy {
            self.busy = busy;
            self.in_use.set_busy(busy);
        }
        busy
    }
}

/// The owner of a relayed session.
#[derive(Clone, Copy)]
pub(crate) struct SessionOwner<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// Adds the platform's hints to errors of the server.
    pub(crate) databases: &'a dyn Databases,
}

/// A login in progress.
pub(crate) struct Login<'a> {
    /// The server's first message: its kind and body.
    pub(crate) first: (u8, Vec<u8>),
    /// Issues tokens.
    pub(crate) cancel: &'a Arc<CancelTable>,
}

/// Relays a session whose startup was sent. `early` holds the bytes that the client sent since.
pub(crate) async fn relay(
    client: impl AsyncRead + AsyncWrite + Unpin,
    backend: Backend,
    owner: SessionOwner<'_>,
    early: BytesMut,
    login: Login<'_>,
) {
    exchange(client, backend, early, owner, Some(login)).await;
}

/// Relays a session that is open already. `early` holds the bytes that the client sent since.
pub(crate) async fn resume(
    client: impl AsyncRead + AsyncWrite + Unpin,
    backend: Backend,
    owner: SessionOwner<'_>,
    early: BytesMut,
) {
    exchange(client, backend, early, owner, None).await;
}

async fn exchange(
    client: impl AsyncRead + AsyncWrite + Unpin,
    backend: Backend,
    early: BytesMut,
    owner: SessionOwner<'_>,
    login: Option<Login<'_>>,
) {
    let Backend { stream, in_use, closing, cut } = backend;
    let shared = Shared::new(in_use);
    let (mut client_reader, mut client_writer) = tokio::io::split(client);
    let (mut server_reader, mut server_writer) = tokio::io::split(stream);
    let up = pump(&mut client_reader, &mut server_writer, early, |seen| shared.on_client_message(seen));
    let down = async {
        let _entry = match login {
            Some(login) => {
                let issue = |process, secret| login.cancel.issue(owner.endpoint, process, secret, &closing);
                send_startup_reply(&mut server_reader, &mut client_writer, login.first, issue).await?
            }
            None => None,
        };
        shared.on_server_message(MessageHead { kind: b'Z', first: Some(IDLE) });
        pump_answers(&mut server_reader, &mut client_writer, owner, |seen| shared.on_server_message(seen))
            .await
    };
    let asleep = async {
        closing.cancelled().await;
        shared.wait_idle().await;
    };
    let ended = tokio::select! {
        ended = down => ended.map(|()| false),
        // A client that is gone needs no reply; its server notices when the connection ends.
        ended = up => ended.map(|()| false),
        () = asleep => Ok(true),
        () = cut.cancelled() => Ok(true),
    };
    match ended {
        Ok(false) => {}
        Ok(true) => {
            // The client may be gone too.
            let _ = client_writer.write_all(&Fatal::asleep().encode()).await;
        }
        Err(error) => tracing::debug!(%error, "a session was interrupted"),
    }
    let _ = client_writer.shutdown().await;
    let _ = server_writer.shutdown().await;
}

/// Forwards bytes, `early` ones first, until the end.
async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    early: BytesMut,
    see: impl Fn(MessageHead),
) -> std::io::Result<()> {
    let mut frames = Frames::default();
    if !early.is_empty() {
        frames.pass(&early, &see);
        to.write_all(&early).await?;
        to.flush().await?;
    }
    let mut buffer = vec![0; RELAY_BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        frames.pass(&buffer[..read], &see);
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

/// Forwards a server's messages, with the platform's hint in some errors.
async fn pump_answers(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    owner: SessionOwner<'_>,
    see: impl Fn(MessageHead),
) -> std::io::Result<()> {
    let (mut frames, mut errors) = (Frames::default(), Errors::default());
    let mut buffer = vec![0; RELAY_BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        frames.pass(&buffer[..read], &see);
        for piece in errors.cut(&buffer[..read]) {
            match piece {
                Piece::Other(bytes) => to.write_all(bytes).await?,
                Piece::TooLong(bytes) => to.write_all(&bytes).await?,
                Piece::Error(bytes) => to.write_all(&explained(bytes, owner).await).await?,
            }
        }
        to.flush().await?;
    }
}

/// Forwards an error, with the platform's hint.
async fn explained(error: Bytes, owner: SessionOwner<'_>) -> Bytes {
    match explain(owner.databases, owner.endpoint, &code_of(&error)).await {
        Some(hint) => with_hint(&error, &hint),
        None => error,
    }
}

/// Passes the server's side of a login on, from its first message to its first `ReadyForQuery`, with a token in place of the backend's
/// numbers. Reads message by message and not a byte more.
async fn send_startup_reply(
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    first: (u8, Vec<u8>),
    issue: impl Fn(i32, i32) -> Option<CancelEntry>,
) -> std::io::Result<Option<CancelEntry>> {
    let (mut entry, (mut kind, mut body)) = (None, first);
    loop {
        if kind == b'K'
            && let Some((process, secret)) = key_data(&body)
        {
            entry = issue(process, secret);
            body = entry.as_ref().map_or(body, |entry| encode_key_data(entry.token));
        }
        client.write_all(&message(kind, &body)).await?;
        // A client waits for each step of an authentication, and then for the end.
        if matches!(kind, b'R' | b'E' | b'Z' | b'v') {
            client.flush().await?;
        }
        if kind == b'Z' {
            return Ok(entry);
        }
        (kind, body) = read_message(server).await?;
    }
}

fn key_data(body: &[u8]) -> Option<(i32, i32)> {
    let (process, rest) = body.split_first_chunk::<4>()?;
    let secret = rest.first_chunk::<4>()?;
    Some((i32::from_be_bytes(*process), i32::from_be_bytes(*secret)))
}

fn encode_key_data((process, secret): (i32, i32)) -> Vec<u8> {
    let mut body = BytesMut::with_capacity(8);
    body.put_i32(process);
    body.put_i32(secret);
    body.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Frames;

    #[derive(Clone, Default)]
    struct Flag(Arc<Mutex<Vec<bool>>>);

    impl InUse for Flag {
        fn set_busy(&mut self, busy: bool) {
            self.0.lock().unwrap().push(busy);
        }
    }

    fn say(shared: &Shared, client: &[(u8, &[u8])], server: &[(u8, &[u8])]) {
        let mut frames = Frames::default();
        for (kind, body) in client {
            frames.pass(&message(*kind, body), |seen| shared.on_client_message(seen));
        }
        let mut frames = Frames::default();
        for (kind, body) in server {
            frames.pass(&message(*kind, body), |seen| shared.on_server_message(seen));
        }
    }

    #[test]
    fn a_session_is_busy_during_a_query_or_transaction() {
        let flag = Flag::default();
        let shared = Shared::new(Box::new(flag.clone()));
        say(&shared, &[], &[(b'Z', b"I")]);
        assert_eq!(*flag.0.lock().unwrap(), [true, false], "a login is work, an open session is not");
        say(&shared, &[(b'Q', b"select")], &[]);
        assert!(shared.lock().busy);
        say(&shared, &[], &[(b'T', b"x"), (b'Z', b"T")]);
        assert!(shared.lock().busy, "in a transaction");
        say(&shared, &[(b'Q', b"commit")], &[(b'Z', b"I")]);
        assert!(!shared.lock().busy);
        say(&shared, &[(b'P', b"p"), (b'S', b""), (b'P', b"p"), (b'S', b"")], &[(b'Z', b"I")]);
        assert!(shared.lock().busy, "one of two pipelined requests is answered");
        say(&shared, &[], &[(b'Z', b"I")]);
        assert!(!shared.lock().busy);
    }

    #[test]
    fn messages_ignored_during_copy_are_not_awaited() {
        let shared = Shared::new(Box::new(Flag::default()));
        say(&shared, &[], &[(b'Z', b"I")]);
        say(&shared, &[(b'Q', b"copy")], &[(b'G', b"\0")]);
        say(&shared, &[(b'd', b"row"), (b'S', b""), (b'c', b"")], &[(b'Z', b"I")]);
        assert!(!shared.lock().busy);
    }
}
