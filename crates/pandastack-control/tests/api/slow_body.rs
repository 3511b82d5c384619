//! Requests whose body arrives slowly, also when their key is revoked before the end.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pandastack_types::limits::BODY_BYTES_HELD_PER_ADDRESS_MAX;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Answer, PATIENCE, World};
use crate::tenants::{key, world_with};

/// A request that was admitted, and waits for the last byte of its body.
pub struct SlowRequest {
    stream: TcpStream,
    last: u8,
}

impl SlowRequest {
    /// Sends all but the last byte of a request that is admitted.
    pub async fn open(world: &World, head: &str, body: &Value) -> Self {
        Self::try_open(world, head, body).await.unwrap_or_else(|status| panic!("{head}: {status}"))
    }

    /// Sends all but the last byte, after `100 Continue` showed that the body is being read.
    /// Returns the status of a request that is refused on its head.
    pub async fn try_open(world: &World, head: &str, body: &Value) -> Result<Self, u16> {
        let address = world.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = body.to_string().into_bytes();
        let length = body.len();
        let head =
            format!("{head}host: {address}\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
        }
        if !answer.starts_with(b"HTTP/1.1 100") {
            let text = String::from_utf8_lossy(&answer).into_owned();
            return Err(text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap());
        }
        let (last, first) = body.split_last().unwrap();
        stream.write_all(first).await.unwrap();
        Ok(Self { stream, last: *last })
    }

    /// Sends the last byte. The status and the whole answer.
    pub async fn finish(mut self) -> (u16, String) {
        // The server may have answered and closed the connection already.
        let _ = self.stream.write_all(&[self.last]).await;
        self.answer().await
    }

    /// The answer to a request that never ends.
    pub async fn answer(mut self) -> (u16, String) {
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        let read = async {
            while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
                match self.stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => answer.extend_from_slice(&buffer[..count]),
                }
            }
        };
        tokio::time::timeout(PATIENCE + Duration::from_secs(5), read).await.unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no answer: {text}")), text)
    }
}

fn post(path: &str, key: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nauthorization: Bearer {key}\r\n")
}

#[tokio::test]
async fn a_key_revoked_during_a_request_creates_no_key() {
    let (world, _agent, owner) = world_with("shop").await;
    let stolen = key(&world, "shop", json!({"role": "owner"})).await;
    let create = SlowRequest::open(&world, &post("/v1/me/tokens", &stolen), &json!({"role": "owner"})).await;
    let rotate = post(&format!("/v1/me/tokens/{}/rotate", &owner[..12]), &stolen);
    let rotate = SlowRequest::open(&world, &rotate, &json!({"overlap_seconds": 0})).await;
    world.delete(&format!("/v1/workspaces/shop/tokens/{}", &stolen[..12])).await.expect(204);
    for request in [create, rotate] {
        let (status, answer) = request.finish().await;
        assert_eq!(status, 401, "{answer}");
    }
    let keys = world.get("/v1/workspaces/shop/tokens").await.expect(200);
    assert_eq!(keys["items"].as_array().unwrap().len(), 1, "{keys}");
}

#[tokio::test]
async fn a_deleted_workspace_rejects_requests_in_progress() {
    let (world, _agent, owner) = world_with("shop").await;
    let target = json!({"type": "http", "url": "https://example.com/"});
    let mut requests = Vec::new();
    for (path, body) in [
        ("/v1/apps", json!({"name": "late", "git_url": "https://git.example/a.git"})),
        ("/v1/schedules", json!({"name": "late", "every_seconds": 60, "target": target})),
        ("/v1/functions", json!({"name": "late", "runtime": "python"})),
    ] {
        requests.push((path, SlowRequest::open(&world, &post(path, &owner), &body).await));
    }
    world.delete("/v1/workspaces/shop").await.expect(204);
    for (path, request) in requests {
        let (status, answer) = request.finish().await;
        assert!(matches!(status, 401 | 403), "{path}: {answer}");
    }
    for table in ["apps", "schedules", "functions"] {
        let rows =
            world.text(&format!("SELECT COUNT(*) || '' FROM {table} WHERE workspace_id = 'shop'")).await;
        assert_eq!(rows, "0", "{table}");
    }
}

fn sign_in(world: &World) -> String {
    format!("POST /v1/console/session HTTP/1.1\r\norigin: {}\r\nsec-fetch-site: same-origin\r\n", world.base)
}

#[tokio::test]
async fn sign_in_bodies_are_size_time_and_rate_limited() {
    let world = World::start().await;
    let request = |key: String| {
        let request = world.http.post(format!("{}/v1/console/session", world.base));
        let request = request.header("origin", &world.base).header("sec-fetch-site", "same-origin");
        world.send(request.json(&json!({ "api_key": key })))
    };
    request("x".repeat(1100)).await.refused(413, "body_too_large");
    let body = json!({ "api_key": world.token });
    let slow = SlowRequest::open(&world, &sign_in(&world), &body).await;
    let late = tokio::spawn(slow.answer());
    let mut open = Vec::new();
    // A try is made good every two seconds, and this may take some.
    let refused = loop {
        match SlowRequest::try_open(&world, &sign_in(&world), &body).await {
            Ok(slow) => open.push(slow),
            Err(status) => break status,
        }
        assert!(open.len() < 60, "bodies that do not end are free");
    };
    assert_eq!(refused, 429);
    // One try may have been made good meanwhile, which a wrong key uses up.
    let wrong = format!("pds_{}", "0".repeat(32));
    let whole = [request(wrong).await, request(world.token.clone()).await];
    let refused = whole.into_iter().find(|answer| answer.status == 429).expect("one is refused");
    refused.refused(429, "rate_limited");
    // A valid key costs nothing in the end.
    let (status, answer) = open.pop().unwrap().finish().await;
    assert_eq!(status, 200, "{answer}");
    request(world.token.clone()).await.expect(200);
    let (status, answer) = late.await.unwrap();
    assert_eq!(status, 408, "{answer}");
}

#[tokio::test]
async fn sign_ins_count_against_the_rate_of_their_workspace() {
    let world = World::start_with(|config| config.requests_per_second = std::num::NonZeroU32::new(5)).await;
    let sign_in = || async {
        let request = world.http.post(format!("{}/v1/console/session", world.base));
        let request = request.header("origin", &world.base).header("sec-fetch-site", "same-origin");
        world.send(request.json(&json!({ "api_key": world.token }))).await
    };
    assert_eq!(sign_in().await.status, 200);
    let answers = join_all((0..25).map(|_| sign_in())).await;
    let is_slowed = |answer: &Answer| {
        answer.json["error"].as_str().is_some_and(|it| it.contains("`requests_per_second`"))
    };
    let slowed = answers.iter().filter(|answer| answer.status == 429 && is_slowed(answer)).count();
    assert!(slowed > 0 && answers.iter().any(|answer| answer.status == 200), "{slowed}");
    assert_eq!(world.count("SELECT COUNT(*) FROM console_sessions").await, 10, "as many as a key may have");
}

#[tokio::test]
async fn e2b_requests_with_a_wrong_key_are_rejected_before_the_body() {
    let world = World::start().await;
    let head = |key: &str| format!("POST /v2/sandboxes HTTP/1.1\r\nx-api-key: {key}\r\n");
    let body = json!({"templateID": "base"});
    let wrong = head("pds_00000000000000000000000000000000");
    assert_eq!(SlowRequest::try_open(&world, &wrong, &body).await.err(), Some(401));
    assert!(SlowRequest::try_open(&world, &head(&world.token), &body).await.is_ok());
}

/// A statement over HTTP needs a password that only the database knows, so its body is read before anything is
/// checked.
#[tokio::test]
async fn unfinished_bodies_use_little_memory() {
    const BODY_BYTES: usize = 10 * 1024 * 1024;
    let (world, _agent, _) = world_with("shop").await;
    let address = world.base.strip_prefix("http://").unwrap().to_owned();
    let chunk: Arc<[u8]> = vec![b' '; 256 * 1024].into();
    let open = async |chunk: Arc<[u8]>| {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let head = format!(
            "POST /sql HTTP/1.1\r\nhost: {address}\r\ncontent-length: {BODY_BYTES}\r\n\
             neon-connection-string: postgresql://u:p@127.0.0.1/postgres?options=endpoint%3D{id}\r\n\r\n",
            id = "00000000-0000-4000-8000-000000000000",
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut left = BODY_BYTES - 1;
        while left > 0 {
            let part = left.min(chunk.len());
            // A refused body is not read to its end.
            if stream.write_all(&chunk[..part]).await.is_err() {
                break;
            }
            left -= part;
        }
        stream
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(open(Arc::clone(&chunk)).await);
    }
    let mut refused = 0;
    for stream in &mut held {
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_millis(500), stream.read_exact(&mut answer));
        if let Ok(Ok(_)) = read.await {
            assert_eq!(&answer, b"HTTP/1.1 429");
            refused += 1;
        }
    }
    let fit = BODY_BYTES_HELD_PER_ADDRESS_MAX / BODY_BYTES;
    assert!(refused >= 20 - fit - 1, "only {refused} were refused");
    world.post("/v1/me/tokens", json!({"label": "small"})).await.expect(201);
    drop(held);
    let mut again = open(chunk).await;
    again.write_all(b" ").await.unwrap();
    let mut answer = [0; 12];
    tokio::time::timeout(PATIENCE, again.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_ne!(&answer, b"HTTP/1.1 429", "what was held is free again");
}
