//! The client against hand-written exchanges: its requests, and how it classifies failures.

use std::path::PathBuf;
use std::time::Duration;

use pandastack_engine_firecracker::types::{
    CacheType, Drive, InstanceState, MemoryBackend, NetworkOverride, RateLimiter, SnapshotCreate,
    SnapshotLoad, SnapshotType, TokenBucket, VmState,
};
use pandastack_engine_firecracker::{Api, ApiError};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A server that answers one request with the given bytes, then closes. Returns the request.
struct Server {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    listener: UnixListener,
}

impl Server {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        Self { _dir: dir, socket, listener }
    }

    fn api(&self) -> Api {
        Api::new(&self.socket)
    }

    async fn answer(&self, answer: &[u8]) -> String {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let request = read_request(&mut stream).await;
        stream.write_all(answer).await.unwrap();
        request
    }
}

/// Head and body of one request.
async fn read_request(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if read == 0 || body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
    }
}

fn body(request: &str) -> serde_json::Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn refusal(message: &str) -> String {
    let body = format!(r#"{{"fault_message":"{message}"}}"#);
    let head = "HTTP/1.1 400 \r\nServer: Firecracker API\r\nConnection: keep-alive";
    format!("{head}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

const DONE: &[u8] = b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n";

fn snapshot() -> SnapshotCreate {
    SnapshotCreate {
        snapshot_type: SnapshotType::Diff,
        snapshot_path: "state".to_owned(),
        mem_file_path: "memory".to_owned(),
    }
}

fn load() -> SnapshotLoad {
    SnapshotLoad {
        snapshot_path: "state".to_owned(),
        mem_backend: MemoryBackend { backend_type: "File", backend_path: "memory".to_owned() },
        track_dirty_pages: true,
        resume_vm: false,
        network_overrides: vec![NetworkOverride {
            iface_id: "eth0".to_owned(),
            host_dev_name: "tap3".to_owned(),
        }],
    }
}

#[tokio::test]
async fn requests_match_the_firecracker_api() {
    let server = Server::new();
    let api = server.api();
    let limiter = RateLimiter {
        bandwidth: Some(TokenBucket { size: 10, refill_time: 1000, one_time_burst: None }),
        ops: None,
    };
    let drive = Drive {
        drive_id: "disk".to_owned(),
        path_on_host: "disk".to_owned(),
        is_root_device: false,
        is_read_only: false,
        cache_type: CacheType::Writeback,
        io_engine: "Sync",
        rate_limiter: Some(limiter),
    };
    let limit = Duration::from_secs(10);
    let (sent, request) = tokio::join!(api.put("/drives/disk", &drive, limit), server.answer(DONE));
    sent.unwrap();
    assert!(request.starts_with("PUT /drives/disk HTTP/1.1\r\n"), "{request}");
    let expected = json!({
        "drive_id": "disk",
        "path_on_host": "disk",
        "is_root_device": false,
        "is_read_only": false,
        "cache_type": "Writeback",
        "io_engine": "Sync",
        "rate_limiter": { "bandwidth": { "size": 10, "refill_time": 1000 } },
    });
    assert_eq!(body(&request), expected);
    let (sent, request) = tokio::join!(api.set_state(VmState::Resumed), server.answer(DONE));
    sent.unwrap();
    assert!(request.starts_with("PATCH /vm "), "{request}");
    assert_eq!(body(&request), json!({ "state": "Resumed" }));
    let snapshot = snapshot();
    let (sent, request) = tokio::join!(api.create_snapshot(&snapshot), server.answer(DONE));
    sent.unwrap();
    let expected = json!({ "snapshot_type": "Diff", "snapshot_path": "state", "mem_file_path": "memory" });
    assert_eq!(body(&request), expected);
    let load = load();
    let (sent, request) = tokio::join!(api.load_snapshot(&load), server.answer(DONE));
    sent.unwrap();
    let expected = json!({
        "snapshot_path": "state",
        "mem_backend": { "backend_type": "File", "backend_path": "memory" },
        "track_dirty_pages": true,
        "resume_vm": false,
        "network_overrides": [{ "iface_id": "eth0", "host_dev_name": "tap3" }],
    });
    assert_eq!(body(&request), expected);
}

#[tokio::test]
async fn instance_states_are_parsed() {
    let server = Server::new();
    for (word, state) in [
        ("Not started", InstanceState::NotStarted),
        ("Paused", InstanceState::Paused),
        ("Running", InstanceState::Running),
    ] {
        let body =
            format!(r#"{{"id":"machine","state":"{word}","vmm_version":"1.16.1","app_name":"Firecracker"}}"#);
        let answer = format!("HTTP/1.1 200 \r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let api = server.api();
        let (instance, request) = tokio::join!(api.describe(), server.answer(answer.as_bytes()));
        let instance = instance.unwrap();
        assert_eq!((instance.id.as_str(), instance.state), ("machine", state));
        assert!(request.starts_with("GET / "), "{request}");
    }
}

#[tokio::test]
async fn firecracker_error_messages_are_passed_through() {
    let server = Server::new();
    for message in [
        "Load snapshot error: Failed to restore from snapshot: Failed to get snapshot state from file: \
         Failed to load snapshot state from file: Snapshot version is unsupported: 9.0.0",
        "Create snapshot error: Cannot write memory file: No space left on device (os error 28)",
        "The requested operation is not supported after starting the microVM.",
    ] {
        let (answer, load) = (refusal(message), load());
        let api = server.api();
        let (outcome, _) = tokio::join!(api.load_snapshot(&load), server.answer(answer.as_bytes()));
        let error = outcome.unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(matches!(error, ApiError::Refused { status: 400, .. }) && !error.suggests_exit());
    }
}

#[tokio::test]
async fn a_truncated_api_response_suggests_a_process_exit() {
    let server = Server::new();
    let half = &refusal("half")[..60];
    let cut_body = "HTTP/1.1 200 \r\nContent-Length: 100\r\n\r\n{";
    for answer in ["", half, cut_body] {
        let api = server.api();
        let (outcome, _) = tokio::join!(api.describe(), server.answer(answer.as_bytes()));
        let error = outcome.unwrap_err();
        assert!(matches!(error, ApiError::Broken(_)) && error.suggests_exit(), "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_missing_api_socket_is_reported() {
    let server = Server::new();
    let api = server.api();
    let Server { _dir: dir, socket, listener } = server;
    drop(listener);
    for gone in [false, true] {
        if gone {
            std::fs::remove_file(&socket).unwrap();
        }
        let error = api.describe().await.unwrap_err();
        assert!(matches!(error, ApiError::Unreachable { .. }) && error.suggests_exit(), "{error:?}");
        assert!(error.to_string().contains("api.sock"), "{error}");
    }
    drop(dir);
}

#[tokio::test]
async fn malformed_responses_are_rejected() {
    let server = Server::new();
    let long = "x".repeat(2 << 20);
    let confused = r#"{"id":"machine","state":"Confused","vmm_version":"1.16.1"}"#;
    let confused = format!("HTTP/1.1 200 \r\nContent-Length: {}\r\n\r\n{confused}", confused.len());
    for answer in [
        "what\r\n\r\n".to_owned(),
        "HTTP/1.1 500 \r\nContent-Length: 4\r\n\r\noops".to_owned(),
        "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n{}".to_owned(),
        confused,
        format!("HTTP/1.1 200 \r\nContent-Length: {}\r\n\r\n{long}", long.len()),
    ] {
        let api = server.api();
        let serve = async {
            let (mut stream, _) = server.listener.accept().await.unwrap();
            read_request(&mut stream).await;
            // A client that has seen enough hangs up.
            let _ = stream.write_all(answer.as_bytes()).await;
        };
        let (outcome, ()) = tokio::join!(api.describe(), serve);
        let error = outcome.unwrap_err();
        assert!(matches!(error, ApiError::Malformed(_)), "{error:?}");
        assert!(error.to_string().len() < 1_000 && !error.suggests_exit());
    }
}

#[tokio::test]
async fn an_unresponsive_firecracker_times_out() {
    let server = Server::new();
    let limit = Duration::from_millis(50);
    let error = server.api().patch("/vm", &(), limit).await.unwrap_err();
    assert!(matches!(error, ApiError::Late(waited) if waited == limit), "{error:?}");
    assert!(!error.suggests_exit());
}
