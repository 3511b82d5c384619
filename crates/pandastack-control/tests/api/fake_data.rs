//! Commands and files of the fake agent, which pass through control unchanged.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use pandastack_types::api::FileEntry;
use pandastack_types::{ErrorCode, SandboxId, SandboxState};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fake_agent::{FakeAgent, refuse};

/// What machines of the fake agent have inside.
#[derive(Default)]
pub struct Inside {
    /// Status files of dpkg, of the machines that are asked next; without one, there is no dpkg.
    pub dpkg: VecDeque<String>,
    /// Stands in for every command that is run.
    pub every_command: Option<&'static str>,
}

/// The path of dpkg's status file, as requests have it.
const DPKG: &str = "path=/var/lib/dpkg/status";

pub(crate) async fn exec(
    State(agent): State<FakeAgent>,
    UrlPath(id): UrlPath<SandboxId>,
    body: Bytes,
) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    if agent.lock().sandboxes.get(&id).is_some_and(|s| s.state == SandboxState::Hibernated) {
        agent.set_state(id.as_str(), SandboxState::Running);
    }
    if request["argv"][3] == "/srv/copy.py" {
        return Json(json!({"stdout": selected(&request), "stderr": "", "exit_code": 0, "duration_ms": 3,
                           "truncated": false}))
        .into_response();
    }
    if request["argv"][7] == "/srv/pull/pull.py" {
        let push = agent.lock().image_push;
        return Json(
            json!({"stdout": resolved(&request, push), "stderr": "", "exit_code": 0, "duration_ms": 3,
                           "truncated": false}),
        )
        .into_response();
    }
    match request["cmd"].as_str() {
        Some("hang") => std::future::pending().await,
        Some("sleep") => refuse(ErrorCode::ExecTimeout, "timeout: the command was killed after 1 s"),
        // More than any answer that control reads for itself.
        Some("nuls") => {
            let nuls = "\0".repeat(5 << 20);
            Json(
                json!({"stdout": nuls, "stderr": nuls, "exit_code": 0, "duration_ms": 3, "truncated": false}),
            )
            .into_response()
        }
        cmd => Json(json!({"stdout": format!("ran {}", cmd.unwrap_or("argv")), "stderr": "", "exit_code": 0,
                           "duration_ms": 3, "truncated": false}))
        .into_response(),
    }
}

/// Response of the script that selects and packs the files of a build: one archive, and its input as the sum.
fn selected(request: &Value) -> String {
    let input: Value = serde_json::from_str(request["stdin"].as_str().unwrap()).unwrap();
    let sum = input["sources"].to_string();
    let archives = match input["out"].as_str() {
        Some("") => json!([]),
        _ => json!([{"owner": "", "path": "/srv/out/0.tar"}]),
    };
    json!({"sum": sum, "archives": archives}).to_string()
}

/// Response of the script that finds images: an image of two layers, unless its name says otherwise.
fn resolved(request: &Value, push: u64) -> String {
    let input: Value = serde_json::from_str(request["stdin"].as_str().unwrap()).unwrap();
    let name = input["name"].as_str().unwrap();
    if name.contains("missing") {
        return json!({"error": "image `missing` has no `latest`"}).to_string();
    }
    let config = json!({"env": {"IMAGE": "yes"}, "user": "app", "workdir": "/work", "cmd": ["/run"]});
    let (sums, number) = (["sha256:one", "sha256:two"], 1000 * push + name.len() as u64);
    let digest = format!("sha256:{number:064}");
    json!({"digest": digest, "config": config, "diff_ids": sums, "bytes": 9}).to_string()
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Two events, then what the test prints ([`FakeAgent::print`]), until dropped.
pub(crate) async fn exec_stream(State(agent): State<FakeAgent>) -> Response {
    let guard = NotifyOnDrop(agent.stream_dropped.clone());
    let printed = agent.printed.subscribe();
    let event = |chunk: &str| {
        let data = json!({ "chunk": chunk });
        Ok::<_, std::io::Error>(Bytes::from(format!("event: stdout\ndata: {data}\n\n")))
    };
    let first = futures::stream::iter(["a", "b"].map(event));
    let rest = futures::stream::unfold((printed, guard), move |(mut printed, guard)| async move {
        if printed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let next = event(&printed.borrow_and_update());
        Some((next, (printed, guard)))
    });
    let body = Body::from_stream(first.chain(rest));
    ([("content-type", "text/event-stream; charset=utf-8")], body).into_response()
}

/// A body that is generated while it is read.
pub(crate) async fn read(State(agent): State<FakeAgent>, request: Request) -> Response {
    if request.uri().query() == Some(DPKG) {
        let status = agent.lock().inside.dpkg.pop_front();
        return status.unwrap_or_default().into_response();
    }
    if request.uri().query().is_some_and(|query| query.contains("missing")) {
        return refuse(ErrorCode::FileNotFound, "there is no file /missing");
    }
    let chunks =
        futures::stream::iter(0..64).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65_536])));
    ([("content-type", "application/octet-stream")], Body::from_stream(chunks)).into_response()
}

pub(crate) async fn write(body: Body) -> Json<Value> {
    let mut bytes = 0;
    let mut stream = body.into_data_stream();
    while let Some(Ok(chunk)) = stream.next().await {
        bytes += chunk.len();
    }
    Json(json!({"path": "/f", "bytes": bytes}))
}

pub(crate) async fn set_attributes() -> Json<FileEntry> {
    Json(FileEntry::default())
}

/// Attributes of a file: of images, some exist.
pub(crate) async fn stat(State(agent): State<FakeAgent>, request: Request) -> Response {
    match request.uri().query() {
        Some(DPKG) if !agent.lock().inside.dpkg.is_empty() => Json(FileEntry::default()).into_response(),
        Some("path=/a" | "path=/etc/nginx") => Json(FileEntry::default()).into_response(),
        _ => refuse(ErrorCode::FileNotFound, "there is no such file"),
    }
}

/// Moves a file; one is not there.
pub(crate) async fn rename(Json(request): Json<Value>) -> Response {
    match request["from"].as_str() {
        Some("/go.mod") => refuse(ErrorCode::FileNotFound, "there is no such file"),
        _ => Json(json!({})).into_response(),
    }
}

pub(crate) async fn done(request: Request) -> Json<Value> {
    Json(json!({"did": request.uri().path_and_query().unwrap().as_str()}))
}
