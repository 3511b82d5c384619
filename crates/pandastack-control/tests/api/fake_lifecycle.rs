//! Sandboxes, snapshots and builds of the fake agent: it records requests and follows a test's
//! script.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path as UrlPath, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use jiff::Timestamp;
use pandastack_types::agent_api::{
    AgentCreate, AgentFork, AgentForked, AgentSnapshot, AgentSnapshotDone, ChildOutcome, Source,
};
use pandastack_types::api::{HostView, SandboxMetrics};
use pandastack_types::{ErrorCode, SandboxId, SandboxState, SnapshotId};
use serde_json::{Value, json};

use crate::fake_agent::{FakeAgent, refuse, sandbox};

pub(crate) async fn create(State(agent): State<FakeAgent>, Json(body): Json<AgentCreate>) -> Response {
    let gate = {
        let mut inner = agent.lock();
        inner.creates += 1;
        if let Some((code, error)) = inner.refuse_create.pop_front() {
            return refuse(code, error);
        }
        inner.create_gate.clone()
    };
    if let Some(gate) = gate {
        gate.notified().await;
    }
    let mut inner = agent.lock();
    let template = match &body.source {
        Source::Template(name) | Source::TemplateDisk(name) => name.clone(),
        Source::Snapshot(id) if inner.snapshots.contains(id) => "base".to_owned(),
        Source::Snapshot(_) => return refuse(ErrorCode::NotFound, "no such snapshot"),
    };
    let made = sandbox(body.spec.id.clone(), &template);
    inner.workspaces.extend(body.spec.workspace.map(|workspace| (body.spec.id.clone(), workspace)));
    inner.sandboxes.insert(body.spec.id, made.clone());
    Json(made).into_response()
}

pub(crate) async fn describe(State(agent): State<FakeAgent>, UrlPath(id): UrlPath<SandboxId>) -> Response {
    match agent.lock().sandboxes.get(&id) {
        Some(sandbox) => Json(sandbox.clone()).into_response(),
        None => refuse(ErrorCode::NotFound, "no such sandbox"),
    }
}

pub(crate) async fn metrics(State(agent): State<FakeAgent>, UrlPath(id): UrlPath<SandboxId>) -> Response {
    match agent.lock().sandboxes.get(&id) {
        Some(sandbox) => {
            let host = HostView { cpu_count: sandbox.cpu, ..HostView::default() };
            let (at, status) = (Timestamp::now(), sandbox.state);
            let (pid, host_rss_bytes) = (Some(7), host.memory_bytes);
            let seen =
                SandboxMetrics { at, status, pid, host_rss_bytes, host, egress_denied: 0, guest: None };
            Json(seen).into_response()
        }
        None => refuse(ErrorCode::NotFound, "no such sandbox"),
    }
}

pub(crate) async fn remove(State(agent): State<FakeAgent>, UrlPath(id): UrlPath<SandboxId>) -> StatusCode {
    agent.lock().sandboxes.remove(&id);
    StatusCode::NO_CONTENT
}

pub(crate) async fn patch(
    State(agent): State<FakeAgent>,
    UrlPath(id): UrlPath<SandboxId>,
    Json(body): Json<Value>,
) -> Response {
    agent.lock().patches.push(body);
    describe(State(agent), UrlPath(id)).await
}

pub(crate) async fn network(
    State(agent): State<FakeAgent>,
    UrlPath(id): UrlPath<SandboxId>,
    Json(body): Json<Value>,
) -> Response {
    const GATE_WAIT: Duration = Duration::from_millis(500);
    let gate = {
        let mut inner = agent.lock();
        inner.networks.push(body);
        inner.network_gate.take()
    };
    if let Some(gate) = gate {
        let _ = tokio::time::timeout(GATE_WAIT, gate.notified()).await;
    }
    describe(State(agent), UrlPath(id)).await
}

pub(crate) async fn go(
    State(agent): State<FakeAgent>,
    UrlPath(id): UrlPath<SandboxId>,
    state: SandboxState,
) -> Response {
    let now = agent.lock().sandboxes.get(&id).map(|sandbox| sandbox.state);
    match now {
        Some(SandboxState::Failed) => return refuse(ErrorCode::Conflict, "the machine ended"),
        Some(_) if state == SandboxState::Hibernated && agent.lock().refuse_hibernate => {
            return refuse(ErrorCode::DiskFull, "no space");
        }
        Some(_) => agent.set_state(id.as_str(), state),
        None => {}
    }
    describe(State(agent), UrlPath(id)).await
}

pub(crate) async fn fork(
    State(agent): State<FakeAgent>,
    UrlPath(_): UrlPath<SandboxId>,
    Json(body): Json<AgentFork>,
) -> Json<AgentForked> {
    let mut inner = agent.lock();
    let failing = std::mem::take(&mut inner.failing_children);
    let mut children = Vec::new();
    for (index, spec) in body.children.into_iter().enumerate() {
        if failing.contains(&index) {
            children.push(ChildOutcome::Failed("no memory".into()));
            continue;
        }
        let child = sandbox(spec.id.clone(), "base");
        inner.sandboxes.insert(spec.id, child.clone());
        children.push(ChildOutcome::Made(Box::new(child)));
    }
    Json(AgentForked { pause_ms: 1.5, children })
}

pub(crate) async fn snapshot(State(agent): State<FakeAgent>, Json(body): Json<AgentSnapshot>) -> Response {
    let mut inner = agent.lock();
    inner.snapshots.insert(body.snapshot_id);
    if inner.refuse_snapshot {
        return refuse(ErrorCode::DiskFull, "the disk is full");
    }
    Json(AgentSnapshotDone { size_bytes: 4096, pause_ms: 2.0 }).into_response()
}

pub(crate) async fn remove_snapshot(
    State(agent): State<FakeAgent>,
    UrlPath(id): UrlPath<SnapshotId>,
) -> StatusCode {
    agent.lock().snapshots.remove(&id);
    StatusCode::NO_CONTENT
}

fn the_build(agent: &FakeAgent) -> Value {
    let inner = agent.lock();
    json!({"id": "b1", "name": "base", "status": if inner.build_done { "done" } else { "running" },
           "phase": "boot", "started_at": "2026-01-01T00:00:00Z", "log": inner.build_lines})
}

pub(crate) async fn bake(State(agent): State<FakeAgent>) -> Json<Value> {
    Json(the_build(&agent))
}

pub(crate) async fn builds(State(agent): State<FakeAgent>) -> Json<Value> {
    Json(json!([the_build(&agent)]))
}

pub(crate) async fn build(State(agent): State<FakeAgent>, UrlPath(id): UrlPath<String>) -> Response {
    match id.as_str() {
        "b1" => Json(the_build(&agent)).into_response(),
        _ => refuse(ErrorCode::NotFound, "no such build"),
    }
}
