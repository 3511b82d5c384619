//! The audit log: reads of contents, refused keys, the hash chain and the export.

use axum::routing::post;
use pandastack_types::audit::{AuditLine, ChainCheck};
use pandastack_types::limits::AUDIT_REFUSALS_PER_SECOND;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::{World, eventually};

async fn entries(world: &World) -> Vec<Value> {
    world.get("/v1/audit?limit=1000").await.expect(200)["entries"].as_array().unwrap().clone()
}

fn has(entries: &[Value], method: &str, route: &str, status: u16) -> bool {
    entries.iter().any(|one| one["method"] == method && one["route"] == route && one["status"] == status)
}

#[tokio::test]
async fn content_reads_are_audited_and_metadata_reads_are_not() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    world.get(&format!("/v1/sandboxes/{id}/processes")).await;
    world.get(&format!("/v1/sandboxes/{id}/events")).await.expect(200);
    let entries = entries(&world).await;
    assert!(entries.iter().any(|one| one["route"] == "/v1/sandboxes/{id}/processes"), "{entries:?}");
    assert!(!entries.iter().any(|one| one["route"] == "/v1/sandboxes/{id}/events"), "{entries:?}");
}

#[tokio::test]
async fn refused_keys_are_audited_in_the_workspace_of_the_key() {
    let world = World::start().await;
    let made = world.post("/v1/me/tokens", json!({"label": "gone", "role": "viewer"})).await.expect(201);
    let (secret, prefix) = (made["token"].as_str().unwrap(), made["prefix"].as_str().unwrap());
    let call = async |key: &str, path: &str| {
        let request = world.http.request(Method::GET, format!("{}{path}", world.base)).bearer_auth(key);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(call(secret, "/v1/me/tokens").await, 403);
    world.delete(&format!("/v1/me/tokens/{prefix}")).await.expect(204);
    assert_eq!(call(secret, "/v1/sandboxes").await, 401);
    assert_eq!(call("hunter2", "/v1/sandboxes").await, 401);
    let entries = entries(&world).await;
    let of = |who: &str, status: u16| {
        entries.iter().filter(|one| one["token_prefix"] == who && one["status"] == status).count()
    };
    assert_eq!((of(prefix, 403), of(prefix, 401), of("unknown", 401)), (1, 1, 1), "{entries:?}");
    assert!(!format!("{entries:?}").contains("hunter2"));
    let labelled = entries.iter().find(|one| one["status"] == 403).unwrap();
    assert_eq!((&labelled["token_label"], &labelled["route"]), (&json!("gone"), &json!("/v1/me/tokens")));
}

#[tokio::test]
async fn refused_keys_of_e2b_clients_are_audited_too() {
    let world = World::start().await;
    let made = world.post("/v1/me/tokens", json!({"label": "gone", "role": "viewer"})).await.expect(201);
    let (secret, prefix) = (made["token"].as_str().unwrap(), made["prefix"].as_str().unwrap());
    let call = async |key: &str| {
        let request = world.http.get(format!("{}/v2/sandboxes", world.base)).header("x-api-key", key);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(call(secret).await, 200);
    world.delete(&format!("/v1/me/tokens/{prefix}")).await.expect(204);
    assert_eq!((call(secret).await, call("e2b_hunter2").await), (401, 401));
    let entries = entries(&world).await;
    let of = |who: &str| {
        let refused = |one: &&Value| {
            one["token_prefix"] == who && one["status"] == 401 && one["path"] == "/v2/sandboxes"
        };
        entries.iter().filter(refused).count()
    };
    assert_eq!((of(prefix), of("unknown")), (1, 1), "{entries:?}");
    assert!(!format!("{entries:?}").contains("hunter2"));
}

#[tokio::test]
async fn unauthenticated_requests_cannot_fill_the_audit_log() {
    let world = World::start().await;
    let send = |_| async {
        let url = format!("{}/v1/sandboxes", world.base);
        world.http.get(url).bearer_auth("pds_00000000000000000000000000000000").send().await.unwrap().status()
    };
    // A key that worked recently keeps working from an address that guesses.
    assert!(entries(&world).await.is_empty());
    let began = std::time::Instant::now();
    let answers = futures::future::join_all((0..100).map(send)).await;
    assert!(answers.iter().all(|status| !status.is_success()));
    let seconds = began.elapsed().as_secs() + 1;
    let written = u64::try_from(entries(&world).await.len()).unwrap();
    assert!(
        (1..=seconds * u64::from(AUDIT_REFUSALS_PER_SECOND)).contains(&written),
        "{written} in {seconds} s"
    );
}

#[tokio::test]
async fn audit_log_tampering_is_detected() {
    let mut world = World::start().await;
    for _ in 0..3 {
        world.post("/v1/me/tokens", json!({"expires_in_days": 0})).await.refused(400, "bad_request");
    }
    let whole = world.get("/v1/audit/verify").await.expect(200);
    assert_eq!((&whole["checked"], &whole["problem"]), (&json!(3), &Value::Null), "{whole}");
    let head = world.text("SELECT value FROM installation WHERE name = 'audit_head'").await;
    assert_eq!(whole["head"], head);
    let problem = async |world: &World| {
        let verified = world.get("/v1/audit/verify").await.expect(200);
        verified["problem"].as_str().unwrap_or_default().to_owned()
    };
    world.stop().await;
    world.execute("DROP TRIGGER audit_is_never_changed", &[]).await;
    world.execute("UPDATE audit SET status = 200 WHERE id = 2", &[]).await;
    world.start_again().await;
    assert_eq!(problem(&world).await, "entry 2 was changed: its content does not match its hash");
    world.stop().await;
    world.execute("DELETE FROM audit WHERE id = 2", &[]).await;
    world.start_again().await;
    assert_eq!(problem(&world).await, "entries before entry 3 are missing or were replaced");
    world.stop().await;
    world.execute("DELETE FROM audit WHERE id >= 2", &[]).await;
    world.start_again().await;
    assert_eq!(
        problem(&world).await,
        format!("entries at the end are missing: no entry has the hash {head}")
    );
}

#[tokio::test]
async fn the_audit_log_is_exported_to_a_file_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let sink = format!("file://{}", path.display()).parse().unwrap();
    let mut world = World::start_with(|config| config.audit_sink = Some(sink)).await;
    let change = async |world: &World| {
        world.post("/v1/me/tokens", json!({"expires_in_days": 0})).await.refused(400, "bad_request")
    };
    let lines = || -> Vec<AuditLine> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    change(&world).await;
    eventually("the first entry is exported", || async { lines().len() == 1 }).await;
    world.restart().await;
    change(&world).await;
    eventually("the second entry is exported", || async { lines().len() == 2 }).await;
    let mut check = ChainCheck::after(Some(String::new()));
    lines().iter().try_for_each(|line| check.check(line)).unwrap();
}

#[tokio::test]
async fn an_audit_server_receives_every_entry_after_a_failure() {
    let (sender, mut bodies) = mpsc::channel::<String>(16);
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let answer = move |body: String| async move {
        // The first batch is refused, and sent again.
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return http::StatusCode::SERVICE_UNAVAILABLE;
        }
        sender.send(body).await.unwrap();
        http::StatusCode::NO_CONTENT
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = format!("http://{}/audit", listener.local_addr().unwrap()).parse().unwrap();
    let server = axum::serve(listener, axum::Router::new().route("/audit", post(answer)));
    let server = tokio::spawn(server.into_future());
    let world = World::start_with(|config| config.audit_sink = Some(sink)).await;
    world.post("/v1/me/tokens", json!({"expires_in_days": 0})).await.refused(400, "bad_request");
    let body = tokio::time::timeout(crate::harness::PATIENCE, bodies.recv()).await.unwrap().unwrap();
    let line: AuditLine = serde_json::from_str(body.lines().next().unwrap()).unwrap();
    assert!(has(&[json!(line.entry)], "POST", "/v1/me/tokens", 400), "{body}");
    server.abort();
}
