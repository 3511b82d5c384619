//! Answers of the scripted server that do not change: one of everything that there is to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::{Value, json};

use crate::server::{ID, ago, error, sandbox};

pub const APP: &str = "aaaa0000-0000-4000-8000-000000000001";
pub const DATABASE: &str = "dddd0000-0000-4000-8000-000000000001";
pub const FUNCTION: &str = "ffff0000-0000-4000-8000-000000000001";
pub const SCHEDULE: &str = "cccc0000-0000-4000-8000-000000000001";

pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let (database_path, schedule_path) = (format!("/databases/{DATABASE}"), format!("/schedules/{SCHEDULE}"));
    let mut router = Router::new();
    for (path, answer) in [
        ("/apps", items(app())),
        ("/apps/shop", app()),
        ("/apps/draft", draft()),
        ("/apps/draft/deploys", json!([])),
        ("/apps/shop/metrics", app_metrics()),
        ("/apps/shop/env", app_env()),
        (database_path.as_str(), database()),
        ("/functions", items(function())),
        ("/functions/hello", function()),
        ("/schedules", items(schedule())),
        (schedule_path.as_str(), schedule()),
        ("/me/tokens", items(token())),
        ("/members", items(member())),
        ("/members/sessions", items(session())),
        ("/hosts", items(host())),
        ("/me/quota", quota()),
        ("/usage", usage()),
        ("/audit", audit()),
    ] {
        router = router.route(path, get(move || async move { axum::Json(answer) }));
    }
    router
        .route("/volumes/{name}", delete(remove))
        .route("/me/tokens/{name}", delete(remove))
        .route("/apps/shop/env/{name}", delete(remove))
        .route(&database_path, delete(|| async { StatusCode::NO_CONTENT }))
        .route(&format!("{database_path}/clone"), post(|| async { axum::Json(restoring()) }))
        .route("/databases", get(|| async { axum::Json(items(database())) }).post(create_database()))
}

/// The first database of a host waits for its template.
fn create_database<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    let is_baked = Arc::new(AtomicBool::new(false));
    post(move || async move {
        match is_baked.swap(true, Ordering::SeqCst) {
            false => error(StatusCode::SERVICE_UNAVAILABLE, "template_baking", "template is being built"),
            true => (StatusCode::CREATED, axum::Json(database())).into_response(),
        }
    })
}

/// Deletes anything but `kept`, whose error does not contain its name.
async fn remove(Path(name): Path<String>) -> Response {
    match name.as_str() {
        "kept" => error(StatusCode::CONFLICT, "conflict", "protected from deletion"),
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

fn items(item: Value) -> Value {
    json!({ "items": [item] })
}

fn app() -> Value {
    json!({
        "id": APP, "workspace": "default", "name": "shop", "git_url": "https://example.com/shop.git",
        "git_branch": "main", "framework": "flask", "port": 8000, "health_path": "/", "idle_timeout_seconds": 300,
        "env": {}, "template": "base", "cpu": 1, "memory_mb": 512, "status": "running", "sandbox_id": ID,
        "url": "http://shop.localhost:8080", "created_at": ago(7300), "updated_at": ago(125),
        "databases": [{"database": DATABASE, "env": "DATABASE_URL", "scope": "production", "build": false}],
    })
}

/// An app that was never deployed.
fn draft() -> Value {
    let mut app = app();
    app["name"] = "draft".into();
    app["status"] = "created".into();
    app["sandbox_id"] = Value::Null;
    app
}

fn app_env() -> Value {
    let one = |key: &str, value: &str| json!({"key": key, "value": value, "secret": false, "scope": "all", "stage": "all", "updated_at": ago(1)});
    json!({"env": [one("CERT", "one\ntwo"), one("PLAIN", "x")]})
}

fn app_metrics() -> Value {
    let used = json!({
        "cpu_count": 1, "cpu_ms": 1200, "cpu_used_percent": 12.5, "memory_bytes": 50 << 20, "memory_limit_bytes": 512 << 20,
        "disk_bytes": 1 << 20, "sent_bytes": 2048, "received_bytes": 1024,
    });
    let instances = json!([{"sandbox_id": ID, "status": "running", "host": used}]);
    json!({"at": ago(0), "total": used, "instances": instances})
}

fn database() -> Value {
    json!({
        "id": DATABASE, "status": "running", "template": "postgres-16", "label": "orders", "created_at": ago(7300),
        "size": "1g", "always_on": false, "protected": true, "sandbox_id": sandbox(ID)["id"], "failover_available": false,
    })
}

fn restoring() -> Value {
    let mut database = database();
    database["status"] = "provisioning".into();
    database["step"] = "replaying WAL".into();
    database
}

fn function() -> Value {
    json!({
        "id": FUNCTION, "workspace": "default", "name": "hello", "runtime": "python", "entrypoint": "main.handler",
        "code_size": 2048, "template": "base", "env": {}, "secrets": [], "public": true,
        "url": "http://fn-hello.localhost:8080", "version": 3, "is_ready": true, "aliases": {},
        "created_at": ago(7300), "updated_at": ago(125),
    })
}

fn schedule() -> Value {
    json!({
        "id": SCHEDULE, "workspace": "default", "name": "nightly", "function_id": "", "cron": "0 3 * * *",
        "timezone": "Europe/Berlin", "target": { "type": "http", "url": "https://example.com/hook", "method": "POST" },
        "paused": false, "consecutive_failures": 0, "next_run_at": "2026-01-02T02:00:00Z",
        "overlap": "skip", "missed": "run_once", "retries": 2, "timeout_seconds": 300,
        "created_at": ago(7300), "updated_at": ago(7300),
    })
}

fn token() -> Value {
    json!({ "prefix": "pds_01234567", "label": "ci", "role": "developer", "created_at": ago(7300) })
}

fn member() -> Value {
    json!({
        "id": "aaaa0000-0000-4000-8000-000000000002", "email": "ada@example.com", "name": "Ada", "subject": "ada",
        "role": "developer", "from_groups": true, "created_at": ago(7300), "last_sign_in_at": ago(130),
    })
}

fn session() -> Value {
    json!({
        "id": "pds_89abcdef", "member": "aaaa0000-0000-4000-8000-000000000002", "label": "ada@example.com",
        "client": "laptop", "role": "developer", "created_at": ago(130), "expires_at": "2040-01-01T00:00:00Z",
    })
}

fn host() -> Value {
    json!({
        "id": "box", "reachable": true, "engine": "qemu-tcg", "isolation": "emulated", "sandboxes": 2,
        "memory_free_mb": 8192, "disk_free_bytes": 10_737_418_240_u64, "version": "0.1.0", "last_seen_at": ago(1),
    })
}

fn usage() -> Value {
    let used = json!({
        "creates": 3, "cpu_ms": 61_500, "memory_mb_seconds": 7_372_800, "asleep_seconds": 5400, "sent_bytes": 2048,
        "received_bytes": 1_048_576,
    });
    let mut sandbox = used.clone();
    sandbox["sandbox_id"] = ID.into();
    json!({
        "from": "2026-01-01T00:00:00Z", "to": "2026-01-31T00:00:00Z", "total": used, "sandboxes": [sandbox],
        "truncated": true,
    })
}

fn quota() -> Value {
    let used = json!({"sandboxes": 4, "cpu": 4, "memory_mb": 2048, "snapshot_mb": 0});
    json!({"workspace": "default", "quota": {"sandboxes": 50}, "used": used})
}

fn audit() -> Value {
    let entry = json!({
        "id": 7, "at": ago(125), "token_prefix": "pds_01234567", "token_label": "ci", "method": "POST",
        "route": "/v1/sandboxes/{id}/exec", "path": format!("/v1/sandboxes/{ID}/exec"), "sandbox_id": ID, "status": 200,
        "request_id": "r-1", "took_ms": 42,
    });
    json!({ "entries": [entry] })
}
