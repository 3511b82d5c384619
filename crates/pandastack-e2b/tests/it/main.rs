//! The facade over a native API that records its requests: permissions, and the format of errors.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_e2b::{
    Access, DelegatedAccess, Directory, DirectoryUnavailable, ENVD_PORT, Facade, FoundSandbox,
    INTERPRETER_PORT,
};
use pandastack_edge::Target;
use pandastack_types::api::Sandbox;
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};
use tower::ServiceExt;

/// Calls that reached the native API: method and path, key, and on whose behalf.
type Calls = Arc<Mutex<Vec<(String, Option<String>, Option<DelegatedAccess>)>>>;

/// Bodies of calls that had one, as JSON.
type Bodies = Arc<Mutex<Vec<Value>>>;

/// Number of invalid credentials after which the directory refuses all.
const WRONG_MAX: u32 = 20;

struct One {
    sandbox: Sandbox,
    /// Live keys of its workspace.
    keys: Arc<Mutex<Vec<String>>>,
    wrong: Mutex<u32>,
}

#[async_trait]
impl Directory for One {
    async fn find(&self, id: &SandboxId) -> Result<Option<FoundSandbox>, DirectoryUnavailable> {
        Ok((self.sandbox.id == *id).then(|| FoundSandbox { sandbox: self.sandbox.clone(), user: None }))
    }

    async fn access(
        &self,
        id: &SandboxId,
        _: Option<IpAddr>,
    ) -> Result<Option<Access>, DirectoryUnavailable> {
        let keys = self.keys.lock().unwrap().clone();
        Ok((self.sandbox.id == *id).then_some(Access { revision: 0, keys }))
    }

    async fn check_key(&self, key: &str, _: Option<IpAddr>) -> pandastack_types::Result<()> {
        match key {
            "pds_wrong" => Err(Error::new(ErrorCode::Unauthorized, "the API key is invalid")),
            _ => Ok(()),
        }
    }

    fn admits(&self, _: Option<IpAddr>) -> bool {
        *self.wrong.lock().unwrap() < WRONG_MAX
    }

    fn count_invalid_key(&self, _: Option<IpAddr>) {
        *self.wrong.lock().unwrap() += 1;
    }
}

fn sandbox(status: &str, metadata: Value) -> Sandbox {
    serde_json::from_value(json!({
        "id": "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55", "workspace": "default", "template": "base", "cpu": 1, "memory_mb": 512,
        "status": status, "host_reachable": true, "engine": "fake", "isolation": "emulated", "metadata": metadata,
        "persistent": false, "created_at": "2026-01-01T00:00:00Z", "boot_stages_us": {},
    }))
    .unwrap()
}

struct Fixture {
    facade: Facade,
    calls: Calls,
    bodies: Bodies,
    id: SandboxId,
    keys: Arc<Mutex<Vec<String>>>,
}

async fn record(State((calls, bodies, shown)): State<(Calls, Bodies, Value)>, request: Request) -> Response {
    let key = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let call = format!("{} {}", request.method(), request.uri());
    calls.lock().unwrap().push((call.clone(), key, request.extensions().get::<DelegatedAccess>().cloned()));
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
    bodies.lock().unwrap().extend(serde_json::from_slice::<Value>(&body));
    match call.as_str() {
        "GET /v1/sandboxes/gone" => {
            let body = json!({ "error": "sandbox `gone` not found", "code": "not_found", "request_id": "r" });
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
        "GET /v1/templates" => Json(json!([])).into_response(),
        "GET /v1/snapshots" => Json(json!({ "snapshots": [] })).into_response(),
        call if call.contains("/processes") => Json(json!({ "processes": [] })).into_response(),
        call if call.contains("/fs?") => "content".into_response(),
        call if call.ends_with("/lifecycle") => {
            Json(json!({ "ttl_seconds": 1, "persistent": false, "idle_seconds": 0, "idle_timeout_seconds": 1, "on_timeout": "kill" }))
                .into_response()
        }
        _ => Json(shown).into_response(),
    }
}

fn fixture(status: &str, metadata: Value) -> Fixture {
    let sandbox = sandbox(status, metadata);
    let (calls, bodies) = (Calls::default(), Bodies::default());
    let shown = serde_json::to_value(&sandbox).unwrap();
    let native = Router::new().fallback(record).with_state((Arc::clone(&calls), Arc::clone(&bodies), shown));
    let id = sandbox.id.clone();
    let keys = Arc::new(Mutex::new(vec!["pds_k".to_owned()]));
    let directory = One { sandbox, keys: Arc::clone(&keys), wrong: Mutex::default() };
    let facade = Facade::new(native, Arc::new(directory), &LinkKey::new(&[7; 32]).unwrap());
    Fixture { facade, calls, bodies, id, keys }
}

impl Fixture {
    async fn control(&self, path: &str, key: Option<&str>) -> (u16, Value) {
        let request = http::Request::get(path).header("host", "127.0.0.1:8080");
        let request = key.into_iter().fold(request, |request, key| request.header("x-api-key", key));
        read(self.facade.control_plane().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = http::Request::post(path)
            .header("host", "127.0.0.1:8080")
            .header("x-api-key", "pds_key")
            .body(Body::from(body.to_string()))
            .unwrap();
        read(self.facade.control_plane().oneshot(request).await.unwrap()).await
    }

    async fn port(&self, port: u16, sandbox: &SandboxId, request: http::request::Builder) -> (u16, Value) {
        let mut request = request.body(Body::from("{}")).unwrap();
        request.extensions_mut().insert(Target {
            sandbox: sandbox.clone(),
            port,
            by_header: true,
            own_domain: false,
        });
        read(self.facade.sandbox_ports().oneshot(request).await.unwrap()).await
    }

    async fn token(&self) -> String {
        let (_, detail) = self.control(&format!("/sandboxes/{}", self.id), Some("pds_key")).await;
        detail["envdAccessToken"].as_str().unwrap().to_owned()
    }

    fn last(&self) -> (String, Option<String>, Option<DelegatedAccess>) {
        self.calls.lock().unwrap().last().cloned().unwrap()
    }
}

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (
        status,
        serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()),
    )
}

fn list() -> http::request::Builder {
    http::Request::post("/process.Process/List")
}

#[tokio::test]
async fn the_control_plane_forwards_the_key_and_translates_errors() {
    let made = fixture("running", json!({}));
    assert_eq!(made.control("/sandboxes/gone", None).await.0, 401);
    assert_eq!(made.control("/sandboxes/gone", Some("pds_wrong")).await.0, 401);
    assert!(made.calls.lock().unwrap().is_empty(), "refused before anything is called");
    assert!(made.calls.lock().unwrap().is_empty());
    let (status, body) = made.control("/sandboxes/gone", Some("pds_key")).await;
    assert_eq!(
        (status, &body["code"], &body["message"]),
        (404, &json!(404), &json!("sandbox `gone` not found"))
    );
    assert_eq!(made.last().1.as_deref(), Some("Bearer pds_key"));
    let (status, body) = made.control("/sandboxes/Not_An_Id", Some("pds_key")).await;
    assert_eq!((status, &body["code"]), (404, &json!(404)));
    assert_eq!(made.control("/volumes", Some("pds_key")).await.0, 501);
}

#[tokio::test]
async fn a_sandbox_port_requires_the_sandbox_access_token() {
    let made = fixture("running", json!({}));
    let token = made.token().await;
    let before = made.calls.lock().unwrap().len();
    for request in
        [list(), list().header("x-access-token", "wrong"), list().header("authorization", "Bearer pds_key")]
    {
        let (status, body) = made.port(ENVD_PORT, &made.id, request).await;
        assert_eq!((status, &body["code"]), (401, &json!("unauthenticated")));
    }
    assert_eq!(made.calls.lock().unwrap().len(), before);
    let (status, body) = made.port(ENVD_PORT, &made.id, list().header("x-access-token", &token)).await;
    assert_eq!((status, body), (200, json!({ "processes": [] })));
    let (call, key, behalf) = made.last();
    assert_eq!(call, format!("GET /v1/sandboxes/{}/processes", made.id));
    assert_eq!(
        (key, behalf),
        (None, Some(DelegatedAccess { sandbox: made.id.clone(), key: Some("pds_k".to_owned()) }))
    );
    let execute = http::Request::post("/execute").header("x-access-token", "wrong");
    assert_eq!(made.port(INTERPRETER_PORT, &made.id, execute).await.0, 401);
}

#[tokio::test]
async fn a_missing_or_paused_sandbox_is_reported() {
    let health = || http::Request::get("/health");
    let made = fixture("running", json!({}));
    assert_eq!(made.port(ENVD_PORT, &made.id, health()).await.0, 204);
    let (status, body) = made.port(ENVD_PORT, &SandboxId::random(), health()).await;
    assert_eq!(status, 502);
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("was not found") && body["sandboxId"].is_string(), "{body}");
    let paused = fixture("hibernated", json!({}));
    assert_eq!(paused.port(ENVD_PORT, &paused.id, health()).await.0, 502);
    let resuming = fixture("hibernated", json!({ "e2b.auto_resume": "true" }));
    assert_eq!(resuming.port(ENVD_PORT, &resuming.id, health()).await.0, 502, "it does not run yet");
    let list = http::Request::post("/process.Process/List");
    assert_eq!(resuming.port(ENVD_PORT, &resuming.id, list).await.0, 401, "other requests are let in");
    assert_eq!(fixture("failed", json!({})).port(ENVD_PORT, &made.id, health()).await.0, 502);
}

#[tokio::test]
async fn a_pause_without_memory_keeps_only_the_disk() {
    let kept = async |body: Value| {
        let made = fixture("running", json!({}));
        assert_eq!(made.post(&format!("/sandboxes/{}/pause", made.id), body).await.0, 204);
        assert_eq!(made.last().0, format!("POST /v1/sandboxes/{}/hibernate", made.id));
        made.bodies.lock().unwrap().last().cloned().unwrap()
    };
    assert_eq!(kept(json!({ "memory": false })).await["keep"], "disk");
    assert_ne!(kept(json!({ "memory": true })).await["keep"], "disk");
    assert_ne!(kept(json!({})).await["keep"], "disk");
}

#[tokio::test]
async fn a_sandbox_boots_from_its_disk_if_memory_is_not_wanted() {
    let posts = async |body: Value| {
        let made = fixture("hibernated", json!({}));
        assert_eq!(made.post(&format!("/sandboxes/{}/connect", made.id), body).await.0, 201);
        let calls = made.calls.lock().unwrap().clone();
        let names = calls.iter().filter_map(|(call, ..)| call.strip_prefix("POST /v1/sandboxes/"));
        names.filter_map(|call| Some(call.split_once('/')?.1.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(posts(json!({})).await, ["wake"]);
    assert_eq!(posts(json!({ "memory": false })).await, ["wake", "hibernate", "wake"]);
    let created = async |body: Value| {
        let made = fixture("running", json!({}));
        made.post("/v2/sandboxes", body).await;
        let bodies = made.bodies.lock().unwrap().clone();
        bodies.into_iter().find(|body| body.get("ttl_seconds").is_some()).unwrap()
    };
    let pauses = created(json!({ "templateID": "base", "autoPause": true })).await;
    assert_eq!((&pauses["on_timeout"], &pauses["keep_on_timeout"]), (&json!("hibernate"), &Value::Null));
    let disk = created(json!({ "templateID": "base", "autoPause": true, "autoPauseMemory": false })).await;
    assert_eq!((&disk["on_timeout"], &disk["keep_on_timeout"]), (&json!("hibernate"), &json!("disk")));
}

#[tokio::test]
async fn a_signed_url_must_name_its_sandbox() {
    use base64::Engine as _;
    use sha2::Digest as _;
    let made = fixture("running", json!({}));
    let token = made.token().await;
    let sign = |text: String| {
        let digest = sha2::Sha256::digest(text.as_bytes());
        let signature = base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest);
        format!("v1_{signature}").replace('+', "%2B").replace('/', "%2F")
    };
    let good = sign(format!("/a:read::{token}"));
    let id = &made.id;
    let (status, body) = made.control(&format!("/files?path=/a&signature={good}"), None).await;
    assert_eq!(status, 401, "no sandbox is searched for: {body}");
    assert!(body["message"].as_str().unwrap().contains("sandbox_id"), "{body}");
    let url = format!("/files?path=/a&signature={good}&sandbox_id={id}");
    assert_eq!(made.control(&url, None).await, (200, json!("content")));
    assert_eq!(
        made.last().2,
        Some(DelegatedAccess { sandbox: made.id.clone(), key: Some("pds_k".to_owned()) })
    );
    let late = sign(format!("/a:read::{token}:1"));
    let late = format!("/files?path=/a&signature={late}&signature_expiration=1&sandbox_id={id}");
    let (status, body) = made.control(&late, None).await;
    assert_eq!((status, body["message"].as_str()), (401, Some("signature is already expired")));
    assert_eq!(made.control(&format!("/files?path=/b&signature={good}&sandbox_id={id}"), None).await.0, 401);
    assert_eq!(made.control(&format!("/files?path=/a&sandbox_id={id}"), None).await.0, 401);
    assert_eq!(made.control(&url, None).await.0, 200);
    for _ in 0..WRONG_MAX {
        made.control(&format!("/files?path=/b&signature=x&sandbox_id={id}"), None).await;
    }
    assert_eq!(made.control(&url, None).await.0, 429, "who guesses is slowed down");
}

#[tokio::test]
async fn an_access_token_is_revoked_with_its_key() {
    let made = fixture("running", json!({}));
    let token = made.token().await;
    let ask = || made.port(ENVD_PORT, &made.id, list().header("x-access-token", &token));
    assert_eq!(ask().await.0, 200);
    made.keys.lock().unwrap().clear();
    assert_eq!(ask().await.0, 401);
    let (_, detail) = made.control(&format!("/sandboxes/{}", made.id), Some("pds_key")).await;
    assert_eq!(detail["envdAccessToken"], Value::Null, "a key that may not use sandboxes gets none");
}
