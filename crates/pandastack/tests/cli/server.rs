//! A scripted API server: one running sandbox, one baked and one unbaked template.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pandastack_types::ErrorCode;
use serde_json::{Value, json};

use crate::api_errors;

pub const KEY: &str = "pds_0123456789abcdef0123456789abcdef";
pub const ID: &str = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";
/// A sandbox with private ports, and one with none.
pub const PRIVATE: &str = "77777777-0000-4000-8000-000000000001";
pub const SWITCHED_OFF: &str = "88888888-0000-4000-8000-000000000001";
pub const SNAPSHOT: &str = "7a0c5a1e-0000-4000-8000-000000000001";
const BUILD: &str = "b0b0b0b0b0b0b0b0";
/// Longest wait for a command that was started.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(60);

#[derive(Default)]
pub struct Api {
    /// Method, path with query, and body of every call.
    pub calls: Mutex<Vec<(String, String)>>,
    pub files: Mutex<HashMap<String, Vec<u8>>>,
    baked: AtomicBool,
    /// Notified when a command that never ends was requested.
    pub waiting: tokio::sync::Notify,
    /// Beginning of the method and path of calls that are never answered.
    pub unanswered: Mutex<Option<String>>,
}

type Shared = State<Arc<Api>>;

pub struct Server {
    pub api: Arc<Api>,
    address: std::net::SocketAddr,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    pub fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let api = Arc::new(Api::default());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = router(api.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { api, address, runtime }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until a command that never ends is requested.
    pub fn wait_for_command(&self) {
        let asked = async { tokio::time::timeout(WAIT_MAX, self.api.waiting.notified()).await };
        self.runtime.block_on(asked).expect("the command asks for it");
    }

    pub fn calls(&self) -> Vec<String> {
        self.api.calls.lock().unwrap().iter().map(|(call, _)| call.clone()).collect()
    }

    pub fn body_of(&self, call: &str) -> Value {
        let calls = self.api.calls.lock().unwrap();
        let (_, body) = calls.iter().find(|(seen, _)| seen == call).unwrap();
        serde_json::from_str(body).unwrap()
    }
}

fn router(api: Arc<Api>) -> Router {
    let v1 = Router::new()
        .route("/sandboxes", get(|| async { axum::Json(json!({"items": [sandbox(ID)]})) }).post(create))
        .route("/sandboxes/{id}", get(get_one).delete(|| async { StatusCode::NO_CONTENT }))
        .route("/sandboxes/{id}/exec/stream", post(exec_stream))
        .route("/sandboxes/{id}/fs", get(read_file).put(write_file).delete(remove_file))
        .route("/sandboxes/{id}/fs/stat", get(stat_file))
        .route("/sandboxes/{id}/fs/tar", get(pack).put(unpack))
        .route("/sandboxes/{id}/hibernate", post(|| async { axum::Json(json!({"status": "hibernated"})) }))
        .route(
            "/sandboxes/{id}/fork",
            post(|| async { (StatusCode::CREATED, axum::Json(sandbox(SNAPSHOT))) }),
        )
        .route("/sandboxes/{id}/snapshots", post(|| async { (StatusCode::CREATED, axum::Json(snapshot())) }))
        .route("/snapshots", get(|| async { axum::Json(json!({"snapshots": [snapshot()]})) }))
        .route("/templates", get(templates))
        .route("/templates/{name}", get(template))
        .route(
            "/templates/{name}/bake",
            post(|| async { (StatusCode::ACCEPTED, axum::Json(build("running"))) }),
        )
        .route("/templates/builds/{id}", get(|| async { axum::Json(build("done")) }))
        .route("/templates/builds/{id}/logs", get(build_logs))
        .route("/sandboxes/{id}/preview", get(preview))
        .route("/sandboxes/{id}/preview-token", post(sign_preview))
        .route("/sandboxes/{id}/logs", get(|| async { "booted\nlogin:\n" }))
        .route("/run", post(|| async { axum::Json(run_result()) }))
        .route("/sandboxes/{id}/exec", post(exec))
        .route("/me", get(me))
        .merge(crate::services::routes());
    let version = || async { axum::Json(json!({"version": "9.9.9", "api": "v1"})) };
    let v1 = Router::new().nest("/v1", v1).layer(from_fn_with_state(api.clone(), record)).with_state(api);
    v1.route("/version", get(version))
}

async fn preview(Path(id): Path<String>) -> axum::Json<Value> {
    let visibility = match id.as_str() {
        PRIVATE => "private",
        SWITCHED_OFF => "off",
        _ => "unlisted",
    };
    axum::Json(json!({ "visibility": visibility }))
}

async fn sign_preview(Path(id): Path<String>, axum::Json(request): axum::Json<Value>) -> axum::Json<Value> {
    let port = request["port"].as_u64().unwrap();
    axum::Json(json!({
        "url": format!("http://{port}-{id}.localhost:8080/?pandastack_preview=signed"), "token": "signed",
        "sandbox_id": id, "port": port, "expires_at": "2030-01-01T00:00:00Z",
    }))
}

/// Records every call and requires the key.
async fn record(State(api): Shared, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let call = format!("{} {}", parts.method, parts.uri);
    api.calls.lock().unwrap().push((call.clone(), String::from_utf8_lossy(&bytes).into_owned()));
    let is_unanswered = api.unanswered.lock().unwrap().as_ref().is_some_and(|begin| call.starts_with(begin));
    if is_unanswered {
        api.waiting.notify_one();
        std::future::pending::<()>().await;
    }
    let key =
        parts.headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if key != Some(KEY) {
        let code = key.and_then(api_errors::code_of).unwrap_or(ErrorCode::Unauthorized);
        return error(
            StatusCode::from_u16(code.status()).unwrap(),
            &code.as_str(),
            api_errors::message(code),
        );
    }
    next.run(Request::from_parts(parts, bytes.into())).await
}

pub fn error(status: StatusCode, code: &str, sentence: &str) -> Response {
    let body = json!({"error": sentence, "code": code, "request_id": "r-1", "build_id": BUILD});
    (status, [("retry-after", "0")], axum::Json(body)).into_response()
}

pub fn ago(seconds: i64) -> String {
    (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).to_string()
}

pub fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "workspace": "default", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running",
        "guest_ip": "10.201.0.2", "host": "box", "host_reachable": true, "engine": "qemu-tcg",
        "isolation": "emulated", "metadata": {"task": "x"}, "boot_mode": "fork", "boot_ms": 9,
        "persistent": false, "ttl_seconds": 3600, "created_at": ago(90), "expires_at": ago(-3530),
    })
}

fn snapshot() -> Value {
    json!({
        "id": SNAPSHOT, "sandbox_id": ID, "workspace": "default", "template": "base", "name": "before",
        "metadata": {}, "size_bytes": 1_572_864, "host": "box", "created_at": ago(7250),
    })
}

async fn create(State(api): Shared, headers: HeaderMap, body: Bytes) -> Response {
    assert!(headers.contains_key("idempotency-key"), "creates carry a key");
    let request: Value = serde_json::from_slice(&body).unwrap();
    match request["template"].as_str() {
        Some("slow") if !api.baked.load(Ordering::SeqCst) => {
            error(StatusCode::SERVICE_UNAVAILABLE, "template_baking", "template `slow` is being built (boot)")
        }
        Some("missing") => error(StatusCode::NOT_FOUND, "not_found", "template `missing` not found"),
        _ => (StatusCode::CREATED, axum::Json(sandbox(ID))).into_response(),
    }
}

async fn get_one(Path(id): Path<String>) -> Response {
    if id == ID {
        return axum::Json(sandbox(ID)).into_response();
    }
    error(StatusCode::NOT_FOUND, "not_found", &format!("sandbox `{id}` not found"))
}

/// Fails on request, and waits for permission to respond.
async fn exec(State(api): Shared, body: Bytes) -> axum::Json<Value> {
    let request: Value = serde_json::from_slice(&body).unwrap();
    if request["cmd"] == "wait" {
        api.waiting.notify_one();
        std::future::pending::<()>().await;
    }
    let exit_code = i32::from(request["cmd"] == "false");
    axum::Json(
        json!({"stdout": "", "stderr": "no\n", "exit_code": exit_code, "duration_ms": 1, "truncated": false}),
    )
}

/// Commands: the program `nosuch` (missing), `fail`, `bytes` (no text), `slow` (times out), `cut` (stream breaks);
/// any other prints to both streams.
async fn exec_stream(body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    if request["argv"][0] == "nosuch" {
        let message = "cannot run \"nosuch\": No such file or directory";
        return error(StatusCode::NOT_FOUND, "file_not_found", message);
    }
    let frames = match request["cmd"].as_str() {
        Some("fail") => {
            "event: stderr\ndata: {\"chunk\":\"no\\n\"}\n\nevent: exit\ndata: {\"exit_code\":3}\n\n"
        }
        Some("bytes") => {
            "event: stdout\ndata: {\"data\":\"/wA=\"}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n"
        }
        Some("slow") => "event: error\ndata: {\"error\":\"timeout: the command ran past 1 s\"}\n\n",
        Some("cut") => "event: stdout\ndata: {\"chunk\":\"half\"}\n\n",
        _ => {
            "event: stdout\ndata: {\"chunk\":\"out \\u00e4\\n\"}\n\n: ping\n\nevent: stderr\ndata: \
             {\"chunk\":\"err\\n\"}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n"
        }
    };
    ([("content-type", "text/event-stream; charset=utf-8")], frames).into_response()
}

type Params = Query<HashMap<String, String>>;

async fn read_file(State(api): Shared, Query(query): Params) -> Response {
    match api.files.lock().unwrap().get(&query["path"]) {
        Some(bytes) => bytes.clone().into_response(),
        None => error(StatusCode::NOT_FOUND, "file_not_found", api_errors::message(ErrorCode::FileNotFound)),
    }
}

async fn write_file(State(api): Shared, Query(query): Params, body: Bytes) -> axum::Json<Value> {
    api.files.lock().unwrap().insert(query["path"].clone(), body.to_vec());
    axum::Json(json!({"path": query["path"], "bytes": body.len()}))
}

/// A directory with one file.
async fn pack() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o755);
    archive.append_data(&mut header, "./inside.txt", b"hello".as_slice()).unwrap();
    archive.into_inner().unwrap()
}

async fn unpack(State(api): Shared, Query(query): Params, body: Bytes) -> axum::Json<Value> {
    let mut archive = tar::Archive::new(body.as_ref());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            let path = format!("{}/{}", query["path"], entry.path().unwrap().display());
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            api.files.lock().unwrap().insert(path, bytes);
        }
    }
    axum::Json(json!({"path": query["path"], "bytes": body.len()}))
}

async fn remove_file(State(api): Shared, Query(query): Params) -> StatusCode {
    api.files.lock().unwrap().remove(&query["path"]);
    StatusCode::NO_CONTENT
}

async fn stat_file(State(api): Shared, Query(query): Params) -> Response {
    let path = &query["path"];
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_dir = path == "/srv" || path == "/srv/dir";
    let size = api.files.lock().unwrap().get(path).map(Vec::len);
    if !is_dir && size.is_none() {
        return error(StatusCode::NOT_FOUND, "file_not_found", api_errors::message(ErrorCode::FileNotFound));
    }
    let entry = json!({"name": name, "path": path, "is_dir": is_dir, "size": size.unwrap_or(0), "mode": "-", "mtime": 0});
    axum::Json(entry).into_response()
}

fn template_named(name: &str, status: &str) -> Value {
    json!({
        "name": name, "aliases": [], "label": name, "description": "Python and tools", "category": "code",
        "base": "debian", "tools": [], "cpu": 1, "memory_mb": 512, "size_bytes": 0, "is_global": true,
        "status": status,
    })
}

async fn templates() -> axum::Json<Value> {
    axum::Json(json!([template_named("base", "ready"), template_named("slow", "unbaked")]))
}

/// `proxy` and `garbage` answer like servers that are not PandaStack.
async fn template(State(api): Shared, Path(name): Path<String>) -> Response {
    match name.as_str() {
        "proxy" => return (StatusCode::BAD_GATEWAY, "<html>bad gateway</html>").into_response(),
        "garbage" => return "<html>welcome</html>".into_response(),
        _ => {}
    }
    let ready = name != "slow" || api.baked.load(Ordering::SeqCst);
    axum::Json(template_named(&name, if ready { "ready" } else { "unbaked" })).into_response()
}

fn build(status: &str) -> Value {
    json!({"id": BUILD, "name": "slow", "status": status, "phase": "boot", "started_at": ago(1), "log": []})
}

async fn build_logs(State(api): Shared) -> Response {
    api.baked.store(true, Ordering::SeqCst);
    let frames = "data: install Debian packages\n\ndata: boot\n\nevent: done\ndata: end\n\n";
    ([("content-type", "text/event-stream; charset=utf-8")], frames).into_response()
}

fn run_result() -> Value {
    json!({
        "stdout": "1024\n", "stderr": "", "exit_code": 4, "duration_ms": 5, "truncated": false, "sandbox_id": ID,
        "create_ms": 9, "total_ms": 20, "engine": "qemu-tcg", "isolation": "emulated",
    })
}

async fn me() -> axum::Json<Value> {
    let me = json!({"workspace": "default", "token_prefix": "pds_01234567", "token_label": "admin",
        "token_role": "owner", "auth_method": "api_key"});
    axum::Json(me)
}
