//! Sockets and streams end with the key that opened them, and followers of events are isolated.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pandastack_control::ControlConfig;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::fake_agent::FakeAgent;
use crate::harness::{PATIENCE, World, eventually};
use crate::tenants::{key, send, world_with, world_with_config};

/// Longest life of a request or stream after its key ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(20);

/// Interval of comments on a silent stream of events in these tests. Events arrive sooner.
const COMMENTS_EVERY: Duration = Duration::from_secs(2);

/// A connection whose response has started and does not end.
struct OpenStream {
    what: String,
    stream: TcpStream,
}

/// Output of commands by which a test sees that its streams are open.
const PRINTED: &str = "printed now";

/// Events that every open stream of a workspace reports: a new sandbox, and changes of an older
/// one.
struct Activity {
    created: String,
}

impl Activity {
    /// Makes it happen to `id`, which can be paused once.
    async fn make(world: &World, agent: &FakeAgent, owner: &str, id: &str) -> Self {
        let created = sandbox(world, owner).await;
        agent.print(PRINTED);
        send(world, owner, Method::POST, &format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(204);
        Self { created }
    }
}

impl OpenStream {
    async fn open(world: &World, key: &str, method: &str, path: &str, body: &str) -> Self {
        let address = world.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let socket = ["/exec/ws", "/exec/pty", "/ssh"].iter().any(|end| path.ends_with(end));
        let upgrade = match socket {
            true => {
                "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            }
            false => "",
        };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n{upgrade}\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
        }
        let expected: &[u8] = if socket { b"HTTP/1.1 101" } else { b"HTTP/1.1 200" };
        assert!(answer.starts_with(expected), "{path}: {}", String::from_utf8_lossy(&answer));
        Self { what: format!("{method} {path}"), stream }
    }

    /// Everything long-lived that a key can open on a sandbox.
    async fn all(world: &World, key: &str, id: &str) -> Vec<Self> {
        let sandbox = format!("/v1/sandboxes/{id}");
        let mut all = Vec::new();
        for path in ["/exec/ws", "/exec/pty", "/ssh", "/events?follow=1"] {
            all.push(Self::open(world, key, "GET", &format!("{sandbox}{path}"), "").await);
        }
        all.push(Self::open(world, key, "GET", "/v1/events?follow=1", "").await);
        let hang = json!({"cmd": "hang"}).to_string();
        all.push(Self::open(world, key, "POST", &format!("{sandbox}/exec/stream"), &hang).await);
        all
    }

    /// Waits until the server closes it.
    async fn closed_by(&mut self, deadline: Instant) {
        let mut buffer = [0; 4096];
        loop {
            match tokio::time::timeout_at(deadline, self.stream.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(_)) => {}
                Err(_) => panic!("{} is still open", self.what),
            }
        }
    }

    /// Returns whether the stream still reports events. Sockets echo.
    async fn is_open(&mut self, activity: &Activity) -> bool {
        let path = self.what.split([' ', '?']).nth(1).unwrap_or_default();
        let expected = match path.rsplit('/').next() {
            Some("ws" | "pty" | "ssh") => {
                if self.stream.write_all(PRINTED.as_bytes()).await.is_err() {
                    return false;
                }
                PRINTED
            }
            Some("stream") => PRINTED,
            _ if path == "/v1/events" => activity.created.as_str(),
            _ => "\"paused\"",
        };
        self.reports(expected).await
    }

    /// Reads up to a text; false when the server closes it before.
    async fn reports(&mut self, expected: &str) -> bool {
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        while !seen.windows(expected.len()).any(|part| part == expected.as_bytes()) {
            let read = timeout(PATIENCE, self.stream.read(&mut buffer)).await;
            match read.unwrap_or_else(|_| panic!("{} does not report {expected}", self.what)) {
                Ok(0) | Err(_) => return false,
                Ok(read) => seen.extend_from_slice(&buffer[..read]),
            }
        }
        true
    }
}

async fn sandbox(world: &World, owner: &str) -> String {
    let made = send(world, owner, Method::POST, "/v1/sandboxes", json!({})).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn all_closed(streams: &mut [OpenStream]) {
    let deadline = Instant::now() + CLOSED_WITHIN;
    for stream in streams {
        stream.closed_by(deadline).await;
    }
}

#[tokio::test]
async fn streams_of_a_revoked_key_are_closed() {
    let (world, agent, owner) = world_with("shop").await;
    let id = sandbox(&world, &owner).await;
    let (revoked, elsewhere) = (
        key(&world, "shop", json!({"role": "developer"})).await,
        key(&world, "shop", json!({"role": "developer"})).await,
    );
    let mut own = OpenStream::open(&world, &owner, "GET", "/v1/events?follow=1", "").await;
    let mut streams = OpenStream::all(&world, &revoked, &id).await;
    let mut others = OpenStream::all(&world, &elsewhere, &id).await;
    // A request that waits is refused, and not answered when it is done.
    let url = format!("{}/v1/sandboxes/{id}/exec", world.base);
    let waiting = world.http.post(url).bearer_auth(&revoked).json(&json!({"cmd": "hang"}));
    let waiting = tokio::spawn(waiting.send());
    let exec = format!("/agent/v1/sandboxes/{id}/exec");
    eventually("the request waits", || async { agent.has_seen("POST", &exec) }).await;
    world.delete(&format!("/v1/workspaces/shop/tokens/{}", &revoked[..12])).await.expect(204);
    all_closed(&mut streams).await;
    let refused = timeout(CLOSED_WITHIN, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(refused.status().as_u16(), 401);
    let activity = Activity::make(&world, &agent, &owner, &id).await;
    for stream in others.iter_mut().chain([&mut own]) {
        assert!(stream.is_open(&activity).await, "{} of another key", stream.what);
    }
    // Deleted in the store, as by another replica: this server is not notified.
    world.execute("DELETE FROM tokens WHERE prefix = $1", &[&elsewhere[..12]]).await;
    all_closed(&mut others).await;
    assert!(own.reports(&sandbox(&world, &owner).await).await);
}

#[tokio::test]
async fn streams_of_an_expired_key_are_closed() {
    let (world, _agent, owner) = world_with("shop").await;
    let id = sandbox(&world, &owner).await;
    let later = Timestamp::now().checked_add(SignedDuration::from_secs(3600)).unwrap();
    let expiring = key(&world, "shop", json!({"expires_at": later.to_string(), "role": "developer"})).await;
    let mut streams = OpenStream::all(&world, &expiring, &id).await;
    let end = Timestamp::now().checked_add(SignedDuration::from_secs(1)).unwrap();
    let (micros, prefix) = (end.as_microsecond().to_string(), &expiring[..12]);
    let ends = "UPDATE tokens SET expires_at_us = CAST($1 AS BIGINT) WHERE prefix = $2";
    world.execute(ends, &[micros.as_str(), prefix]).await;
    let left: Duration = end.duration_since(Timestamp::now()).try_into().unwrap_or_default();
    let deadline = Instant::now() + left + CLOSED_WITHIN;
    for stream in &mut streams {
        stream.closed_by(deadline).await;
        assert!(Timestamp::now() >= end, "{} ended before its key", stream.what);
    }
}

#[tokio::test]
async fn streams_of_a_suspended_or_deleted_workspace_are_closed() {
    let (world, _agent, owner) = world_with("shop").await;
    let id = sandbox(&world, &owner).await;
    let mut streams = OpenStream::all(&world, &owner, &id).await;
    let mut own = OpenStream::open(&world, &world.token, "GET", "/v1/events?follow=1", "").await;
    world.post("/v1/workspaces/shop/suspend", json!({})).await.expect(200);
    all_closed(&mut streams).await;
    assert!(own.reports(&world.create().await).await);
    world.post("/v1/workspaces/shop/resume", json!({})).await.expect(200);
    let mut again = [OpenStream::open(&world, &owner, "GET", "/v1/events?follow=1", "").await];
    world.delete("/v1/workspaces/shop").await.expect(204);
    all_closed(&mut again).await;
    assert!(own.reports(&world.create().await).await);
}

#[tokio::test]
async fn self_revocation_gets_a_response_and_rotation_keeps_streams() {
    let (world, _agent, owner) = world_with("shop").await;
    let second = key(&world, "shop", json!({"role": "owner"})).await;
    let mut stream = OpenStream::open(&world, &owner, "GET", "/v1/events?follow=1", "").await;
    let path = format!("/v1/me/tokens/{}", &owner[..12]);
    let overlap = json!({"overlap_seconds": 60});
    send(&world, &second, Method::POST, &format!("{path}/rotate"), overlap).await.expect(201);
    assert!(stream.reports(&sandbox(&world, &second).await).await);
    send(&world, &owner, Method::DELETE, &path, Value::Null).await.expect(204);
    all_closed(std::slice::from_mut(&mut stream)).await;
}

#[tokio::test]
async fn the_event_follower_limit_is_enforced() {
    let (world, _agent, owner) = world_with("shop").await;
    let mut open = Vec::new();
    for _ in 0..32 {
        open.push(OpenStream::open(&world, &owner, "GET", "/v1/events?follow=1", "").await);
    }
    let one_more = || send(&world, &owner, Method::GET, "/v1/events?follow=1", json!({}));
    timeout(PATIENCE, one_more()).await.unwrap().refused(429, "quota_exceeded");
    send(&world, &owner, Method::GET, "/v1/events", json!({})).await.expect(200);
    let second = key(&world, "shop", json!({})).await;
    OpenStream::open(&world, &second, "GET", "/v1/events?follow=1", "").await;
    open.pop();
    let follow = || world.http.get(format!("{}/v1/events?follow=1", world.base)).bearer_auth(&owner).send();
    eventually("a place that is left is free", || async { follow().await.unwrap().status() == 200 }).await;
}

#[tokio::test]
async fn events_of_other_workspaces_do_not_delay_keepalive_comments() {
    let change = |config: &mut ControlConfig| config.event_comments_every = COMMENTS_EVERY;
    let (world, _agent, owner) = world_with_config("shop", change).await;
    let mut follower = OpenStream::open(&world, &owner, "GET", "/v1/events?follow=1&tail=0", "").await;
    let mut rounds = 0;
    // These events are more frequent than comments: if each one postponed the next comment, none
    // would be sent.
    let id = world.create().await;
    let noise = async {
        loop {
            for action in ["pause", "resume"] {
                world.post(&format!("/v1/sandboxes/{id}/{action}"), json!({})).await.expect(204);
            }
            rounds += 1;
        }
    };
    tokio::select! {
        reported = follower.reports(": \n\n") => assert!(reported),
        () = noise => {}
    }
    assert!(rounds > 1, "the comment came before anything happened elsewhere");
}
