use std::time::{Duration, Instant};

use pandastack_guest_proto::client::{ClientError, GuestClient};
use pandastack_guest_proto::frame::{FrameKind, encode};
use pandastack_guest_proto::limits::{FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use pandastack_guest_proto::message::ProcessSpec;
use pandastack_guest_proto::sync::{ack, preamble};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{Guest, STEP, sh, text};

#[tokio::test]
async fn stale_bytes_and_partial_frames_before_the_preamble_are_ignored() {
    let guest = Guest::start();
    let mut half = Vec::new();
    encode(&mut half, FrameKind::Request, 0, 1, br#"{"op":"shutdown"}"#);
    half.truncate(half.len() - 4);
    let cut_preamble = preamble(&[9; 16])[..30].to_vec();
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| (i * 31 % 256) as u8).collect();
    for stale in [garbage, [preamble(&[8; 16]), half].concat(), cut_preamble, vec![0xA5; 5000]] {
        let mut stream = guest.dial().await;
        stream.write_all(&stale).await.unwrap();
        let client = GuestClient::connect(stream, STEP).await.unwrap();
        assert_eq!(text(&sh(&client, "echo alive").await), "alive\n");
    }
}

#[tokio::test]
async fn hostile_frames_do_not_crash_the_guest() {
    let guest = Guest::start();
    let frame = |kind, stream, payload: &[u8]| {
        let mut bytes = Vec::new();
        encode(&mut bytes, kind, 0, stream, payload);
        bytes
    };
    let attacks = [
        frame(FrameKind::Request, 1, b"not json"),
        frame(FrameKind::Request, 1, br#"{"op":"no_such_call"}"#),
        frame(FrameKind::Request, 1, br#"{"op":"exec","command":{"shell":5}}"#),
        frame(FrameKind::Request, 1, br#"{"op":"attach","process":18446744073709551615}"#),
        frame(FrameKind::Request, 1, br#"{"op":"signal","process":0,"signal":-1}"#),
        frame(FrameKind::Data, 77, b"to nobody"),
        frame(FrameKind::Credit, 77, &[255; 4]),
        frame(FrameKind::Credit, 77, &[1]),
        frame(FrameKind::Cancel, 77, b""),
        frame(FrameKind::End, 77, b""),
        frame(FrameKind::Reply, 1, b"{}"),
        b"\xa5\x02\x00\x01\x00\x00\x00\xff\xff\xff\xff".to_vec(),
        b"\xa5\xff".to_vec(),
        vec![0xff; 100_000],
    ];
    for attack in attacks {
        let mut stream = guest.dial().await;
        stream.write_all(&[preamble(&[1; 16]), attack].concat()).await.unwrap();
    }
    assert_eq!(text(&sh(&guest.connect().await, "echo alive").await), "alive\n");
}

#[tokio::test]
async fn a_lost_connection_fails_every_call_at_once() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let stream = client.exec(ProcessSpec::shell("sleep 1000")).await.unwrap();
    let waiting = tokio::spawn(stream.collect(100));
    let begun = Instant::now();
    let _usurper = guest.connect().await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(matches!(client.ping().await, Err(ClientError::Disconnected { .. })));
}

#[tokio::test]
async fn dropped_calls_free_their_slots() {
    let guest = Guest::start();
    let client = guest.connect().await;
    for _ in 0..1000 {
        drop(client.exec(ProcessSpec::shell("true")).await.unwrap());
    }
    assert_eq!(text(&sh(&client, "echo alive").await), "alive\n");
}

/// A guest that answers the handshake and then sends the given bytes.
async fn hostile_guest(says: Vec<u8>) -> ClientError {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let guest = tokio::spawn(async move {
        let mut opening = vec![0; 48];
        theirs.read_exact(&mut opening).await.unwrap();
        let nonce = opening[16..32].try_into().unwrap();
        let mut hello = ack(&nonce);
        encode(
            &mut hello,
            FrameKind::Hello,
            0,
            0,
            br#"{"generation":1,"version":"x","from_the_future":[1]}"#,
        );
        theirs.write_all(&[vec![0x77; 200_000], hello].concat()).await.unwrap();
        // The first request, of any kind.
        let mut request = vec![0; 4096];
        while !request.starts_with(&[0xA5, 2]) {
            let _ = theirs.read(&mut request).await.unwrap();
        }
        let _ = theirs.write_all(&says).await;
        // Until the host disconnects.
        while theirs.read(&mut request).await.is_ok_and(|count| count > 0) {}
    });
    let client = GuestClient::connect(ours, STEP).await.unwrap();
    let error = match client.exec(ProcessSpec::shell("true")).await {
        // Do not read, so that missing credit stops the sender.
        Ok(_stream) => client.closed().await,
        Err(error) => error,
    };
    drop(client);
    guest.await.unwrap();
    error
}

#[tokio::test]
async fn a_hostile_guest_is_disconnected() {
    let frame = |kind, stream, payload: &[u8]| {
        let mut bytes = Vec::new();
        encode(&mut bytes, kind, 0, stream, payload);
        bytes
    };
    let started = frame(FrameKind::Event, 1, br#"{"event":"started","process":1,"pid":2}"#);
    let flood = frame(FrameKind::Data, 1, &vec![0; FRAME_BYTES_MAX])
        .repeat(STREAM_WINDOW_BYTES as usize / FRAME_BYTES_MAX + 1);
    let dust = frame(FrameKind::Data, 1, b"").repeat(5000);
    for (what, says) in [
        ("unknown stream", frame(FrameKind::Data, 99, b"x")),
        ("reply to nothing", frame(FrameKind::Reply, 0, b"{}")),
        ("a request of its own", frame(FrameKind::Request, 1, b"{}")),
        ("bad length", b"\xa5\x05\x00\x01\x00\x00\x00\x00\x00\x10\x00".to_vec()),
        ("bad start", vec![0; 10]),
        ("no JSON", frame(FrameKind::Event, 1, b"[[[[")),
        ("deep JSON", frame(FrameKind::Event, 1, "[".repeat(60_000).as_bytes())),
        ("too much", [started.clone(), flood].concat()),
        ("too many", [started.clone(), dust].concat()),
        ("too much credit", [started, frame(FrameKind::Credit, 1, &u32::MAX.to_le_bytes())].concat()),
    ] {
        let error = tokio::time::timeout(STEP, hostile_guest(says))
            .await
            .unwrap_or_else(|_| panic!("{what}: not cut off"));
        assert!(matches!(error, ClientError::Protocol(_) | ClientError::Frame(_)), "{what}: {error}");
    }
}

#[tokio::test]
async fn a_silent_guest_times_out() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let error = GuestClient::connect(ours, Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectDeadline { .. }), "{error}");
}
