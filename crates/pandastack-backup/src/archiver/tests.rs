//! Tests of an unreachable archive, with a fake server.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use data_encoding::BASE64;
use ring::hmac;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, duplex};
use tokio::sync::mpsc;
use url::Url;

use super::*;
use crate::limits::SEGMENT_BYTES;
use crate::replication::{Password, Slot};
use crate::seal::Key;

/// Start of the server's log.
const START: Lsn = Lsn(5 * SEGMENT_BYTES);
const PASSWORD: &str = "p";
const CHUNK_BYTES: u64 = 128 * 1024;
const WAIT: Duration = Duration::from_secs(60);

/// A server that always writes the same. As real ones may, it answers before it sends.
#[derive(Default)]
struct FakeServer {
    written_bytes: AtomicU64,
    wrote: Notify,
    sessions: AtomicUsize,
    asleep: AtomicBool,
    /// Attempts to connect while it slept.
    refused: AtomicUsize,
}

impl FakeServer {
    fn write(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.wrote.notify_waiters();
    }

    fn end(&self) -> Lsn {
        Lsn(START.0 + self.written_bytes.load(Ordering::SeqCst))
    }

    fn sessions(&self) -> usize {
        self.sessions.load(Ordering::SeqCst)
    }

    /// Falls asleep, which ends its sessions, or wakes.
    fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
        self.wrote.notify_waiters();
    }

    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    fn connect(self: &Arc<Self>) -> Result<Box<dyn ByteStream>, ConnectError> {
        if self.is_asleep() {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(ConnectError::Asleep);
        }
        let (ours, theirs) = duplex(1024 * 1024);
        let server = Arc::clone(self);
        // Either side may disconnect to end it.
        tokio::spawn(async move { server.serve(theirs).await });
        Ok(Box::new(ours))
    }

    async fn serve(&self, mut stream: DuplexStream) -> std::io::Result<()> {
        let length = stream.read_u32().await?;
        stream.read_exact(&mut vec![0; length as usize - 4]).await?;
        prove(&mut stream).await?;
        stream.write_all(&message(b'R', &[0; 4])).await?;
        stream.write_all(&message(b'Z', b"I")).await?;
        loop {
            let (_, body) = receive(&mut stream).await?;
            let command = String::from_utf8_lossy(&body).into_owned();
            let end = self.end().to_string();
            let row = match command.split([' ', '\0']).next() {
                Some("SHOW") => row(&["16MB"]),
                Some("IDENTIFY_SYSTEM") => row(&["7", "1", &end]),
                Some("READ_REPLICATION_SLOT") => row(&["physical", &START.to_string(), "1"]),
                Some("START_REPLICATION") => return self.stream(stream, &command).await,
                _ => Bytes::new(),
            };
            stream.write_all(&row).await?;
            stream.write_all(&message(b'C', b"OK\0")).await?;
            stream.write_all(&message(b'Z', b"I")).await?;
        }
    }

    async fn stream(&self, stream: DuplexStream, command: &str) -> std::io::Result<()> {
        let from = command.split(' ').find_map(|word| word.parse::<Lsn>().ok()).unwrap();
        self.sessions.fetch_add(1, Ordering::SeqCst);
        let (reader, mut writer) = tokio::io::split(stream);
        let mut heard = listen(reader);
        writer.write_all(&message(b'W', &[0; 3])).await?;
        let mut sent = from.0;
        loop {
            let wrote = self.wrote.notified();
            tokio::pin!(wrote);
            wrote.as_mut().enable();
            if self.is_asleep() {
                return writer.shutdown().await;
            }
            tokio::select! {
                word = heard.recv() => match word {
                    Some(word) if word.last() == Some(&1) => writer.write_all(&keepalive(sent)).await?,
                    Some(_) => {}
                    None => return Ok(()),
                },
                () = &mut wrote => {}
            }
            if self.is_asleep() {
                return writer.shutdown().await;
            }
            let end = self.end().0;
            while sent < end {
                let bytes = CHUNK_BYTES.min(end - sent);
                writer.write_all(&log(sent, bytes, end)).await?;
                sent += bytes;
            }
        }
    }
}

/// The server's half of SCRAM, for [`PASSWORD`].
async fn prove(stream: &mut DuplexStream) -> std::io::Result<()> {
    let authentication =
        |kind: i32, text: &str| message(b'R', &[&kind.to_be_bytes(), text.as_bytes()].concat());
    stream.write_all(&authentication(10, "SCRAM-SHA-256\0\0")).await?;
    let (_, first) = receive(stream).await?;
    let first = String::from_utf8_lossy(&first).into_owned();
    // The mechanism's name and a length precede it; `n,,` is not signed.
    let bare = first.split_once("n,,").unwrap().1;
    let nonce = bare.split_once("r=").unwrap().1;
    let verifier = pandastack_postgres::scram_verifier(PASSWORD);
    let (salt, server_key) =
        (verifier.split(['$', ':']).nth(2).unwrap(), verifier.rsplit(':').next().unwrap());
    let challenge = format!("r={nonce}more,s={salt},i=4096");
    stream.write_all(&authentication(11, &challenge)).await?;
    let (_, last) = receive(stream).await?;
    let last = String::from_utf8_lossy(&last).into_owned();
    let signed = format!("{bare},{challenge},{}", last.rsplit_once(",p=").unwrap().0);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64.decode(server_key.as_bytes()).unwrap());
    let proof = BASE64.encode(hmac::sign(&key, signed.as_bytes()).as_ref());
    stream.write_all(&authentication(12, &format!("v={proof}"))).await
}

/// The client's messages in a stream.
fn listen(mut reader: ReadHalf<DuplexStream>) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((_, body)) = receive(&mut reader).await {
            if sender.send(body).await.is_err() {
                return;
            }
        }
    });
    receiver
}

async fn receive(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<(u8, Bytes)> {
    let (kind, length) = (stream.read_u8().await?, stream.read_u32().await?);
    let mut body = vec![0; length as usize - 4];
    stream.read_exact(&mut body).await?;
    Ok((kind, body.into()))
}

fn message(kind: u8, body: &[u8]) -> Bytes {
    let mut whole = BytesMut::new();
    whole.put_u8(kind);
    whole.put_u32(u32::try_from(body.len() + 4).unwrap());
    whole.put_slice(body);
    whole.freeze()
}

fn row(values: &[&str]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u16(u16::try_from(values.len()).unwrap());
    for value in values {
        body.put_u32(u32::try_from(value.len()).unwrap());
        body.put_slice(value.as_bytes());
    }
    message(b'D', &body)
}

fn keepalive(sent: u64) -> Bytes {
    let mut body = BytesMut::from(&b"k"[..]);
    body.put_u64(sent);
    body.put_i64(0);
    body.put_u8(0);
    message(b'd', &body)
}

fn log(from: u64, bytes: u64, end: u64) -> Bytes {
    let mut body = BytesMut::from(&b"w"[..]);
    body.put_u64(from);
    body.put_u64(end);
    body.put_i64(0);
    body.extend((from..from + bytes).map(|at| (at / 7 % 251) as u8));
    message(b'd', &body)
}

fn archiver(server: &Arc<FakeServer>, folder: &Path) -> Archiver {
    let url = Url::from_directory_path(folder).unwrap();
    let archive = Archive::open(&url, &[], "db", Key::new([3; 32])).unwrap();
    let slot = Slot::new("pandastack").unwrap();
    let login = Login { user: "u".to_owned(), password: Password(PASSWORD.to_owned()), slot };
    let server = Arc::clone(server);
    let connect = move || {
        let connected = server.connect();
        async move { connected }
    };
    Archiver::start(login, archive, connect, CancellationToken::new())
}

async fn await_status(status: &mut watch::Receiver<Status>, holds: impl FnMut(&Status) -> bool) -> Status {
    let found = tokio::time::timeout(WAIT, status.wait_for(holds)).await;
    found.expect("in time").unwrap().clone()
}

/// Whether everything that the server has now is archived.
fn archived(server: &FakeServer) -> impl FnMut(&Status) -> bool + use<> {
    let end = server.end();
    move |status: &Status| status.last_archived.is_some_and(|(_, archived)| archived >= end)
}

/// The folder of an archive, which can be made unavailable.
struct Store {
    _folder: tempfile::TempDir,
    path: PathBuf,
    away: PathBuf,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, away) = (folder.path().join("store"), folder.path().join("away"));
        std::fs::create_dir(&path).unwrap();
        Self { _folder: folder, path, away }
    }

    fn take_away(&self) {
        std::fs::rename(&self.path, &self.away).unwrap();
        std::fs::write(&self.path, "not a folder").unwrap();
    }

    fn bring_back(&self) {
        std::fs::remove_file(&self.path).unwrap();
        std::fs::rename(&self.away, &self.path).unwrap();
    }
}

#[tokio::test]
async fn an_unreachable_archive_is_reported_until_it_recovers() {
    let store = Store::new();
    let server = Arc::new(FakeServer::default());
    server.write(100_000);
    let archiver = archiver(&server, &store.path);
    let mut status = archiver.status();
    await_status(&mut status, archived(&server)).await;

    store.take_away();
    let before = server.sessions();
    server.write(100_000);
    let since = await_status(&mut status, |status| status.failing_since.is_some()).await.failing_since;
    // Through all attempts, although the server responds at the start of each.
    while server.sessions() < before + 3 {
        tokio::time::timeout(WAIT, status.changed()).await.expect("tried in time").unwrap();
        let seen = status.borrow_and_update().clone();
        assert_eq!(seen.failing_since, since, "since it fails, not since it was tried last: {seen:?}");
        assert!(seen.last_error.is_some() && seen.lag_bytes >= 100_000, "{seen:?}");
    }
    server.write(100_000);
    store.bring_back();
    archiver.wake();
    let back = await_status(&mut status, archived(&server)).await;
    assert_eq!((back.failing_since, back.last_error, back.lag_bytes, back.gap), (None, None, 0, None));
}

/// Waits until it was seen that the server sleeps, so often.
async fn await_refused(server: &FakeServer, archiver: &Archiver, times: usize) {
    let (before, mut status) = (server.refused(), archiver.status());
    while server.refused() < before + times {
        archiver.wake();
        tokio::time::timeout(WAIT, status.changed()).await.expect("tried in time").unwrap();
    }
}

#[tokio::test]
async fn unarchived_wal_is_reported_even_while_the_server_sleeps() {
    let store = Store::new();
    let server = Arc::new(FakeServer::default());
    server.write(100_000);
    let archiver = archiver(&server, &store.path);
    let mut status = archiver.status();
    await_status(&mut status, archived(&server)).await;

    store.take_away();
    server.write(100_000);
    let failing = await_status(&mut status, |status| status.failing_since.is_some()).await;
    server.set_asleep(true);
    let sleeps = |status: &Status| status.last_error.as_ref().is_some_and(|why| why.ends_with(ASLEEP_BEHIND));
    let asleep = await_status(&mut status, sleeps).await;
    assert_eq!(asleep.failing_since, failing.failing_since, "since it fails, not since it sleeps");

    // After the store is back, the server's log still has to be archived.
    store.bring_back();
    await_refused(&server, &archiver, 2).await;
    let still = status.borrow_and_update().clone();
    assert!(still.failing_since == failing.failing_since && still.lag_bytes >= 100_000, "{still:?}");
    assert_eq!(still.last_error, asleep.last_error, "it is said once");

    server.set_asleep(false);
    archiver.wake();
    let back = await_status(&mut status, archived(&server)).await;
    assert_eq!((back.failing_since, back.last_error, back.lag_bytes, back.gap), (None, None, 0, None));
}

#[tokio::test]
async fn an_unreachable_archive_is_reported_while_its_server_sleeps() {
    let store = Store::new();
    let server = Arc::new(FakeServer::default());
    server.write(100_000);
    let archiver = archiver(&server, &store.path);
    // Before the archiver starts, which happens at this test's first await.
    store.take_away();
    let mut status = archiver.status();
    await_status(&mut status, |status| status.failing_since.is_some()).await;
    server.set_asleep(true);
    store.bring_back();
    await_refused(&server, &archiver, 2).await;
    let asleep = status.borrow_and_update().clone();
    assert!(asleep.failing_since.is_some() && asleep.lag_bytes > 0, "{asleep:?}");

    server.set_asleep(false);
    archiver.wake();
    let back = await_status(&mut status, archived(&server)).await;
    assert_eq!((back.failing_since, back.last_error, back.lag_bytes), (None, None, 0));
}

#[tokio::test]
async fn a_fully_archived_sleeping_server_is_not_failing() {
    let store = Store::new();
    let server = Arc::new(FakeServer::default());
    server.write(100_000);
    let archiver = archiver(&server, &store.path);
    let mut status = archiver.status();
    await_status(&mut status, archived(&server)).await;
    server.set_asleep(true);
    await_refused(&server, &archiver, 2).await;
    let asleep = await_status(&mut status, |status| !status.connected).await;
    assert_eq!((asleep.failing_since, asleep.last_error, asleep.lag_bytes), (None, None, 0));
}

#[test]
fn an_unreachable_archive_is_retried_with_bounded_backoff() {
    let (mut pause, mut waited, mut tries) = (RETRY_WAIT, Duration::ZERO, 0);
    while waited < Duration::from_secs(600) {
        pause = longer(pause);
        waited += pause;
        tries += 1;
    }
    assert_eq!(pause, RETRY_WAIT_MAX, "so long it takes at most until it is noticed that it is back");
    assert!((20..30).contains(&tries), "{tries}");
}
