//! A guest that sends arbitrary bytes: every call of the host ends, nothing panics, and memory
//! stays within the limits.
//!
//! Proptest generates the guest's replies to a set of open calls: frames of any kind on any stream,
//! with messages of the frozen schema in which single values are replaced, raw bytes, grants. Then
//! the guest closes the channel, and by then every call must have ended by itself or fail at once.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use pandastack_guest_proto::client::{ClientError, GuestClient, LISTINGS_MAX};
use pandastack_guest_proto::frame::{FrameBuffer, FrameKind, encode, encode_credit};
use pandastack_guest_proto::limits::FRAME_BYTES_MAX;
use pandastack_guest_proto::message::*;
use pandastack_guest_proto::sync::{Nonce, PREAMBLE_BYTES, ack};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const CASES: u32 = 400;
/// Attempts at a smaller failing case; each may take all of [`PATIENCE`].
const SHRINKS: u32 = 30;
/// Longest that anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Calls that the host makes at once.
const CALLS: usize = 9;
/// Bytes that a collecting call keeps.
const KEPT_MAX: usize = 4096;

/// An action of the guest.
#[derive(Debug, Clone)]
enum GuestAction {
    Frame {
        kind: FrameKind,
        flags: u8,
        stream: Index,
        payload: Vec<u8>,
    },
    Credit {
        stream: Index,
        bytes: u32,
    },
    /// On a stream that was never opened.
    Stray {
        kind: FrameKind,
        stream: u32,
    },
    Raw(Vec<u8>),
}

fn samples(beginning: &'static str) -> Vec<Value> {
    let schema: BTreeMap<String, Value> =
        serde_json::from_str(include_str!("../schema/generation-1.json")).unwrap();
    schema.into_iter().filter(|(name, _)| name.starts_with(beginning)).map(|(_, sample)| sample).collect()
}

/// The paths of all values inside.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, inner)| places(inner, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(nth, inner)| places(inner, &format!("{at}/{nth}"), found));
        }
        _ => {}
    }
}

fn strange() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        Just(Value::from(u64::MAX)),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(Value::from("../../etc/passwd\0")),
        (0_usize..40_000).prop_map(|length| Value::from("x".repeat(length))),
        Just(serde_json::json!({"hex": "zz"})),
        proptest::collection::vec(any::<u8>(), 0..8).prop_map(Value::from),
    ]
}

/// A message of the schema, valid or with one wrong value.
fn message(beginning: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let changed =
        (select(samples(beginning)), any::<Index>(), strange()).prop_map(|(mut sample, at, with)| {
            let mut found = Vec::new();
            places(&sample, "", &mut found);
            *sample.pointer_mut(at.get::<String>(&found)).unwrap() = with;
            sample
        });
    prop_oneof![2 => select(samples(beginning)), 1 => changed]
        .prop_map(|value| serde_json::to_vec(&value).unwrap())
}

fn sent() -> impl Strategy<Value = GuestAction> {
    let frame = |kind, payload: BoxedStrategy<Vec<u8>>| {
        (any::<bool>(), any::<Index>(), payload).prop_map(move |(stderr, stream, payload)| {
            GuestAction::Frame { kind, flags: u8::from(stderr && kind == FrameKind::Data), stream, payload }
        })
    };
    let data = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..200),
        1 => (0..=FRAME_BYTES_MAX).prop_map(|length| vec![7; length]),
    ];
    let kinds = vec![
        FrameKind::Hello,
        FrameKind::Request,
        FrameKind::Event,
        FrameKind::Reply,
        FrameKind::Data,
        FrameKind::End,
        FrameKind::Cancel,
    ];
    prop_oneof![
        40 => frame(FrameKind::Event, message("event").boxed()),
        20 => frame(FrameKind::Reply, message("reply").boxed()),
        20 => frame(FrameKind::Data, data.boxed()),
        2 => (any::<Index>(), 0_u32..2000).prop_map(|(stream, bytes)| GuestAction::Credit { stream, bytes }),
        1 => (select(kinds), any::<u32>()).prop_map(|(kind, stream)| GuestAction::Stray { kind, stream }),
        1 => (any::<Index>(), any::<u32>()).prop_map(|(stream, bytes)| GuestAction::Credit { stream, bytes }),
        1 => proptest::collection::vec(any::<u8>(), 1..64).prop_map(GuestAction::Raw),
    ]
}

/// The guest's end: a valid handshake, then the generated frames, on the opened streams.
async fn accept(stream: &mut UnixStream) -> std::io::Result<()> {
    let mut first = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut first).await?;
    let nonce: Nonce = first[16..32].try_into().unwrap();
    let mut out = ack(&nonce);
    let hello = serde_json::to_vec(&samples("hello")[0]).unwrap();
    encode(&mut out, FrameKind::Hello, 0, 0, &hello);
    stream.write_all(&out).await
}

async fn play(mut stream: UnixStream, script: Vec<GuestAction>) -> std::io::Result<()> {
    accept(&mut stream).await?;
    let opened: Vec<u32> =
        read_requests(&mut stream, CALLS).await?.into_iter().map(|(stream, _)| stream).collect();
    let mut out = Vec::new();
    for sent in script {
        match sent {
            GuestAction::Frame { kind, flags, stream, payload } if payload.len() <= kind.payload_max() => {
                encode(&mut out, kind, flags, *stream.get(&opened), &payload);
            }
            GuestAction::Frame { .. } => {}
            GuestAction::Credit { stream, bytes } => encode_credit(&mut out, *stream.get(&opened), bytes),
            GuestAction::Stray { kind, stream } => encode(&mut out, kind, 0, stream, &[]),
            GuestAction::Raw(bytes) => out.extend(bytes),
        }
    }
    // The host may have hung up in the middle, which is its right.
    let _ = stream.write_all(&out).await;
    let _ = stream.shutdown().await;
    Ok(())
}

/// The streams of the calls with their requests, once all are open.
async fn read_requests(stream: &mut UnixStream, calls: usize) -> std::io::Result<Vec<(u32, Vec<u8>)>> {
    let (mut buffer, mut bytes, mut opened) = (FrameBuffer::default(), vec![0; 65_536], Vec::new());
    while opened.len() < calls {
        let count = stream.read(&mut bytes).await?;
        assert!(count > 0, "the host hung up before anything was wrong");
        buffer.push(&bytes[..count]);
        while let Some(frame) = buffer.next_frame().unwrap() {
            if frame.kind == FrameKind::Request {
                opened.push((frame.stream, frame.payload.to_vec()));
            }
        }
    }
    Ok(opened)
}

fn path() -> RawPath {
    b"/srv/file".to_vec().into()
}

fn spec() -> ProcessSpec {
    let sample = serde_json::json!({"command": {"shell": "true"}});
    serde_json::from_value(sample).unwrap()
}

/// Every kind of call at once; how each ended, without its content.
async fn make_calls(client: &GuestClient) -> Result<Vec<Result<(), ClientError>>, String> {
    let exec = async {
        let output = client.exec(spec()).await?.collect(KEPT_MAX).await?;
        assert!(output.stdout.len() <= KEPT_MAX && output.stderr.len() <= KEPT_MAX);
        Ok(())
    };
    let follow = async {
        let mut stream = client.attach(ProcessId(7), 0, 0).await?;
        while stream.next().await?.is_some() {}
        Ok(())
    };
    let read = async {
        match client.read_file_whole(path(), KEPT_MAX as u64).await {
            Ok(bytes) => {
                assert!(bytes.len() <= KEPT_MAX);
                Ok(())
            }
            Err(error) => Err(error),
        }
    };
    let write = async {
        let write = FileWrite { path: path(), ..FileWrite::default() };
        client.write_file_whole(write, &vec![1; 600_000]).await.map(drop)
    };
    let watch = async {
        let mut watch = client.watch(FileWatch { path: path(), ..FileWatch::default() }).await?;
        while watch.next().await?.is_some() {}
        Ok(())
    };
    let walk = async { client.walk(FileWalk { path: path(), ..FileWalk::default() }).await.map(drop) };
    let calls = async {
        let (a, b, c, d, e, f, g, h, i) = tokio::join!(
            exec,
            follow,
            read,
            write,
            watch,
            walk,
            async { client.ping().await.map(drop) },
            async { client.processes().await.map(drop) },
            async { client.stats().await.map(drop) },
        );
        vec![a, b, c, d, e, f, g, h, i]
    };
    tokio::time::timeout(PATIENCE, calls).await.map_err(|_| "a call does not end".to_owned())
}

/// Number of calls whose answer was accepted.
async fn check(script: Vec<GuestAction>) -> Result<usize, String> {
    let (host, guest) = UnixStream::pair().unwrap();
    let playing = tokio::spawn(play(guest, script));
    let client = GuestClient::connect(host, PATIENCE).await.map_err(|error| error.to_string())?;
    let ended = make_calls(&client).await?;
    tokio::time::timeout(PATIENCE, client.closed())
        .await
        .map_err(|_| "the loss goes unnoticed".to_owned())?;
    let late = tokio::time::timeout(PATIENCE, client.ping()).await;
    if !matches!(late, Ok(Err(_))) {
        return Err(format!("a call on a lost connection gives {late:?}"));
    }
    // The guest may still be writing after the host disconnects; it sees the end once the last
    // handle is dropped.
    drop(client);
    let played = tokio::time::timeout(PATIENCE, playing).await;
    let played =
        played.map_err(|_| "the channel stays open".to_owned())?.map_err(|error| error.to_string())?;
    played.map_err(|error| error.to_string())?;
    Ok(ended.iter().filter(|outcome| outcome.is_ok()).count())
}

#[test]
fn every_call_ends_whatever_the_guest_sends() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    let taken = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&proptest::collection::vec(sent(), 0..40), |script| {
        let answered = runtime.block_on(check(script)).map_err(TestCaseError::fail)?;
        taken.set(taken.get() + answered);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    // Or every case ended at its first frame, and nothing was tried.
    assert!(taken.get() > CASES as usize / 20, "only {} answers were taken", taken.get());
}

/// A guest that never ends its lists can hold only a limited number in the host's memory.
#[tokio::test]
async fn listings_of_one_guest_wait_for_each_other() {
    let (host, mut guest) = UnixStream::pair().unwrap();
    let play = async {
        accept(&mut guest).await.unwrap();
        // All that were sent before the ping, which the host sent last.
        let requests = read_requests(&mut guest, LISTINGS_MAX + 1).await.unwrap();
        let lists = requests.iter().filter(|(_, request)| *request == requests[0].1).count();
        drop(guest);
        lists
    };
    let call = async {
        let client = GuestClient::connect(host, PATIENCE).await.unwrap();
        let list = || async { client.processes().await.map(drop) };
        let (a, b, c, d, e, f, _) =
            tokio::join!(list(), list(), list(), list(), list(), list(), client.ping());
        [a, b, c, d, e, f]
    };
    let (lists, ended) = tokio::time::timeout(PATIENCE, async { tokio::join!(play, call) }).await.unwrap();
    assert_eq!(lists, LISTINGS_MAX, "the others are not sent yet");
    assert!(ended.iter().all(Result::is_err), "all end with the connection");
}

/// Invalid handshakes fail in time.
#[test]
fn a_malformed_handshake_fails() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = Config {
        cases: CASES / 2,
        failure_persistence: None,
        max_shrink_iters: SHRINKS,
        ..Config::default()
    };
    let nonsense = (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300), message("hello"));
    let outcome = TestRunner::new(config).run(&nonsense, |(acknowledges, bytes, hello)| {
        let ended = runtime.block_on(async {
            let (host, mut guest) = UnixStream::pair().unwrap();
            let play = async {
                let mut first = [0; PREAMBLE_BYTES];
                guest.read_exact(&mut first).await.unwrap();
                let nonce: Nonce = first[16..32].try_into().unwrap();
                let mut out = if acknowledges { ack(&nonce) } else { bytes.clone() };
                if !bytes.len().is_multiple_of(3) {
                    encode(&mut out, FrameKind::Hello, 0, 0, &hello);
                }
                out.extend(&bytes);
                let _ = guest.write_all(&out).await;
                drop(guest);
            };
            let (client, ()) =
                tokio::join!(tokio::time::timeout(PATIENCE, GuestClient::connect(host, PATIENCE)), play);
            client.is_ok()
        });
        prop_assert!(ended, "the handshake does not end");
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
