//! An agent without machines: it keeps its state in memory, and fails or waits as a test scripts
//! it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use pandastack_control::clock::Clock;
use pandastack_types::agent_api::{
    AgentSandbox, AgentTemplate, HostFrozen, HostReport, INCARNATION_HEADER, ReportAnswer, TemplateInfo,
    Usage,
};
use pandastack_types::api::TemplateStatus;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{
    ErrorBody, ErrorCode, HostId, Residency, SandboxId, SandboxState, SnapshotId, WorkspaceId,
};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::simulation::Dice;
use crate::{fake_data, fake_frozen, fake_lifecycle, fake_processes};

pub const SECRET: [u8; 32] = [7; 32];

#[derive(Default)]
pub struct Inner {
    pub sandboxes: BTreeMap<SandboxId, AgentSandbox>,
    pub snapshots: BTreeSet<SnapshotId>,
    /// Workspaces of the sandboxes that were created.
    pub workspaces: BTreeMap<SandboxId, WorkspaceId>,
    pub patches: Vec<Value>,
    /// Network policies as received.
    pub networks: Vec<Value>,
    /// The next answer to one waits for this, and not for long.
    pub network_gate: Option<Arc<Notify>>,
    /// Errors to return instead of doing the work, in order.
    pub refuse_create: VecDeque<(ErrorCode, &'static str)>,
    pub refuse_snapshot: bool,
    pub refuse_hibernate: bool,
    /// Creates wait for this.
    pub create_gate: Option<Arc<Notify>>,
    /// Number of creates that arrived.
    pub creates: usize,
    /// Children of the next fork that fail.
    pub failing_children: BTreeSet<usize>,
    pub memory_free_mb: u64,
    /// Percent of a sandbox's memory that is promised to it.
    pub memory_promised_percent: u32,
    pub unbaked: bool,
    /// Image key of its templates.
    pub image_key: &'static str,
    /// Changes the digest of images in registries.
    pub image_push: u64,
    pub inside: fake_data::Inside,
    /// Data calls that arrived: method, and path with query.
    pub seen: Vec<String>,
    pub build_lines: Vec<String>,
    /// Whether the agent is unreachable in both directions: killed, and not restarted yet.
    pub is_down: bool,
    /// Clock that dates its reports.
    pub clock: Clock,
    /// Rates of injected message faults.
    pub troubles: Option<FaultRates>,
    pub build_done: bool,
    /// The agent's frozen states, with the verdicts that control set.
    pub frozen: HostFrozen,
    /// Started processes: the sandbox and the request.
    pub commands: Vec<(SandboxId, Value)>,
}

/// Chance that happens to calls: delayed, lost on the way in, or answered and the answer lost.
pub struct FaultRates {
    pub dice: Dice,
    pub percent: u64,
}

/// Fault injected into one call.
#[derive(Default)]
struct CallFault {
    delay: Duration,
    loses_request: bool,
    loses_answer: bool,
}

impl FaultRates {
    fn next_fault(&mut self) -> CallFault {
        let mut hit = || self.dice.roll(100) < self.percent;
        let (delayed, loses_request, loses_answer) = (hit(), hit(), hit());
        let delay = Duration::from_micros(if delayed { self.dice.roll(5_000) } else { 0 });
        CallFault { delay, loses_request, loses_answer }
    }
}

/// An answer that breaks off before its first byte.
fn broken() -> Response {
    let torn = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("torn")) });
    Response::new(Body::from_stream(torn))
}

#[derive(Clone)]
pub struct FakeAgent {
    pub host: HostId,
    pub inner: Arc<Mutex<Inner>>,
    /// Notified when the body of an exec stream is dropped.
    pub stream_dropped: Arc<Notify>,
    /// Next output of open exec streams.
    pub printed: watch::Sender<String>,
    /// The join secret, with which control must sign.
    pub link: LinkKey,
    socket: PathBuf,
    control: PathBuf,
}

impl FakeAgent {
    pub async fn start(dir: &Path, host: &str, memory_free_mb: u64, control: &Path) -> Self {
        let socket = dir.join(format!("{host}.sock"));
        let agent = Self {
            host: host.parse().unwrap(),
            link: LinkKey::new(&SECRET).unwrap(),
            inner: Arc::new(Mutex::new(Inner {
                memory_free_mb,
                memory_promised_percent: 100,
                ..Inner::default()
            })),
            stream_dropped: Arc::new(Notify::new()),
            printed: watch::Sender::default(),
            socket: socket.clone(),
            control: control.to_owned(),
        };
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let router = agent.router();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        agent
    }

    /// The same agent, reporting to another server.
    pub fn reporting_to(&self, control: &Path) -> Self {
        Self { control: control.to_owned(), ..self.clone() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Lets every open exec stream print.
    pub fn print(&self, text: &str) {
        self.printed.send_replace(text.to_owned());
    }

    /// Returns whether a call to a path arrived, with any query.
    pub fn has_seen(&self, method: &str, path: &str) -> bool {
        let call = format!("{method} {path}");
        self.lock().seen.iter().any(|seen| seen.split('?').next() == Some(call.as_str()))
    }

    pub fn ids(&self) -> Vec<String> {
        self.lock().sandboxes.keys().map(ToString::to_string).collect()
    }

    pub fn set_state(&self, id: &str, state: SandboxState) {
        let id: SandboxId = id.parse().unwrap();
        let mut inner = self.lock();
        let sandbox = inner.sandboxes.get_mut(&id).unwrap();
        sandbox.state = state;
        sandbox.residency = (state == SandboxState::Hibernated).then_some(Residency::Memory);
    }

    pub fn report_now(&self) -> HostReport {
        let inner = self.lock();
        let status = if inner.unbaked { TemplateStatus::Unbaked } else { TemplateStatus::Ready };
        HostReport {
            host: self.host.clone(),
            address: format!("unix:{}", self.socket.display()),
            version: "0.1.0".into(),
            engine: "fake".into(),
            isolation: "emulated".into(),
            memory_total_mb: 65_536,
            memory_free_mb: inner.memory_free_mb,
            memory_held_asleep_mb: 0,
            memory_promised_percent: inner.memory_promised_percent,
            disk_free_bytes: 1 << 40,
            slots_free: 100,
            templates: vec![
                template("base", &["ubuntu-24.04"], 512, status, inner.image_key),
                template("postgres-16", &[], 1024, status, inner.image_key),
                template("code-interpreter", &[], 1024, status, inner.image_key),
            ],
            sandboxes: inner.sandboxes.values().cloned().collect(),
            denials: Vec::new(),
            snapshots: inner.snapshots.iter().cloned().collect(),
            volumes: Vec::new(),
            at: inner.clock.now(),
        }
    }

    /// Reports, and applies the response.
    pub async fn report(&self) -> ReportAnswer {
        self.send(self.report_now()).await
    }

    /// Reports to a server that may be killed during the call.
    pub async fn try_report(&self) {
        if self.lock().is_down {
            return;
        }
        let report = self.report_now();
        if let Ok((StatusCode::OK, body)) = self.try_send(&report, &LinkKey::new(&SECRET).unwrap()).await {
            self.report_answer(&body);
        }
    }

    pub async fn send(&self, report: HostReport) -> ReportAnswer {
        let (status, body) = self.send_raw(&report, &LinkKey::new(&SECRET).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        self.report_answer(&body)
    }

    fn report_answer(&self, body: &[u8]) -> ReportAnswer {
        let answer: ReportAnswer = serde_json::from_slice(body).unwrap();
        let mut inner = self.lock();
        for id in &answer.forget_sandboxes {
            inner.sandboxes.remove(id);
        }
        for id in &answer.forget_snapshots {
            inner.snapshots.remove(id);
        }
        answer
    }

    pub async fn send_raw(&self, report: &HostReport, key: &LinkKey) -> (StatusCode, Bytes) {
        self.try_send(report, key).await.unwrap()
    }

    async fn try_send(
        &self,
        report: &HostReport,
        key: &LinkKey,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let path = format!("/internal/v1/hosts/{}/report", self.host);
        let now = Timestamp::now().as_second();
        let signature = key.sign(Direction::AgentToControl, &self.host, "POST", &path, now);
        let stream = tokio::net::UnixStream::connect(&self.control).await?;
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        let connection = tokio::spawn(connection);
        let request = http::Request::post(path)
            .header("host", "control")
            .header(LINK_HEADER, signature)
            .body(Full::new(Bytes::from(serde_json::to_vec(report).unwrap())))
            .unwrap();
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        Ok((status, body))
    }

    fn router(&self) -> Router {
        let sandbox = Router::new()
            .route("/fork", post(fake_lifecycle::fork))
            .route("/snapshots", post(fake_lifecycle::snapshot))
            .route("/pause", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Paused)))
            .route("/resume", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Running)))
            .route("/hibernate", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Hibernated)))
            .route("/wake", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Running)))
            .route("/rollback", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Running)))
            .route("/network", axum::routing::put(fake_lifecycle::network))
            .route("/keep-awake", post(|a, i| fake_lifecycle::go(a, i, SandboxState::Running)))
            .route("/exec", post(fake_data::exec))
            .route("/processes", post(fake_processes::start).get(fake_processes::list))
            .route("/exec/stream", post(fake_data::exec_stream))
            .route("/exec/ws", get(fake_processes::socket))
            .route("/exec/pty", get(fake_processes::socket))
            .route("/ssh", get(fake_processes::socket))
            .route(
                "/fs",
                get(fake_data::read)
                    .put(fake_data::write)
                    .delete(fake_data::done)
                    .patch(fake_data::set_attributes),
            )
            .route("/fs/mkdir", post(fake_data::done))
            .route("/fs/tar", get(fake_data::read).put(fake_data::write))
            .route("/fs/rename", post(fake_data::rename))
            .route("/fs/stat", get(fake_data::stat))
            .route("/fs/dir", get(fake_data::done))
            .route("/ports", get(fake_data::done))
            .route("/metrics", get(fake_lifecycle::metrics))
            .route("/logs", get(fake_data::done));
        let agent = Router::new()
            .route("/frozen", get(fake_frozen::read))
            .route("/frozen/verdicts", axum::routing::put(fake_frozen::set_verdicts))
            .route("/sandboxes", post(fake_lifecycle::create))
            .route(
                "/sandboxes/{id}",
                get(fake_lifecycle::describe).delete(fake_lifecycle::remove).patch(fake_lifecycle::patch),
            )
            .nest("/sandboxes/{id}", sandbox)
            .route("/snapshots/{id}", axum::routing::delete(fake_lifecycle::remove_snapshot))
            .route("/templates/{name}/bake", post(fake_lifecycle::bake))
            .route("/builds", get(fake_lifecycle::builds))
            .route("/builds/{id}", get(fake_lifecycle::build));
        Router::new()
            .nest("/agent/v1", agent)
            .layer(from_fn_with_state(self.clone(), verify))
            .with_state(self.clone())
    }
}

fn template(
    name: &str,
    aliases: &[&str],
    memory_mb: u32,
    status: TemplateStatus,
    key: &str,
) -> AgentTemplate {
    AgentTemplate {
        template: TemplateInfo {
            name: name.into(),
            aliases: aliases.iter().map(ToString::to_string).collect(),
            label: name.into(),
            description: String::new(),
            category: "test".into(),
            base: "debian".into(),
            tools: vec![],
            cpu: 1,
            memory_mb,
            volume: None,
            image_key: key.into(),
        },
        status,
        size_bytes: 1,
        error: None,
    }
}

pub fn sandbox(id: SandboxId, template: &str) -> AgentSandbox {
    AgentSandbox {
        id,
        incarnation: 1,
        state: SandboxState::Running,
        residency: None,
        template: template.into(),
        cpu: 1,
        memory_mb: 512,
        guest_ip: Some("10.201.0.2".into()),
        engine: "fake".into(),
        isolation: "emulated".into(),
        boot_mode: "fork".into(),
        boot_ms: 7,
        boot_stages_us: [("fork".to_owned(), 5000)].into(),
        idle_seconds: 42,
        awake_until: None,
        failure: None,
        usage: Usage::default(),
    }
}

pub(crate) fn refuse(code: ErrorCode, error: &str) -> Response {
    let body = ErrorBody { error: error.into(), code, request_id: None, build_id: None };
    (StatusCode::from_u16(code.status()).unwrap(), Json(body)).into_response()
}

/// Every call must be signed for this host, and calls on sandboxes must carry the incarnation.
async fn verify(State(agent): State<FakeAgent>, request: Request, next: Next) -> Response {
    let key = &agent.link;
    let header = request.headers().get(LINK_HEADER).and_then(|value| value.to_str().ok());
    let (method, path) = (request.method().as_str(), request.uri().path());
    let target = request.uri().path_and_query().unwrap().to_string();
    let now = Timestamp::now().as_second();
    if key.verify(Direction::ControlToAgent, header, method, &target, now) != Ok(agent.host.clone()) {
        return refuse(ErrorCode::Unauthorized, "not signed");
    }
    let on_sandbox = path.starts_with("/agent/v1/sandboxes/");
    if on_sandbox && request.headers().get(INCARNATION_HEADER).is_none_or(|value| value != "1") {
        return refuse(ErrorCode::Conflict, "no incarnation");
    }
    if agent.lock().is_down {
        return broken();
    }
    agent.lock().seen.push(format!("{method} {target}"));
    let next_fault = agent.lock().troubles.as_mut().map(FaultRates::next_fault).unwrap_or_default();
    tokio::time::sleep(next_fault.delay).await;
    if next_fault.loses_request {
        return broken();
    }
    let answer = next.run(request).await;
    if next_fault.loses_answer || agent.lock().is_down { broken() } else { answer }
}
