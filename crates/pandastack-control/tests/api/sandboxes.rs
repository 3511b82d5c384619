use pandastack_types::{Error, ErrorCode};
use reqwest::Method;
use serde_json::json;

use crate::harness::{World, eventually};

#[tokio::test]
async fn a_sandbox_is_created_used_and_deleted() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let body = json!({"template": "code-interpreter", "ttl_seconds": 600, "metadata": {"task": "t", "secret.k": "v"}});
    let made = world.post("/v1/sandboxes", body).await.expect(201);
    assert_eq!((&made["status"], &made["template"]), (&json!("running"), &json!("code-interpreter")));
    assert_eq!(
        (&made["cpu"], &made["engine"], &made["isolation"]),
        (&json!(1), &json!("fake"), &json!("emulated"))
    );
    assert_eq!(made["metadata"], json!({"task": "t"}), "secret labels are never shown");
    assert_eq!((&made["host_reachable"], &made["boot_ms"]), (&json!(true), &json!(7)));
    let id = made["id"].as_str().unwrap();
    let ran = world.post(&format!("/v1/sandboxes/{id}/exec"), json!({"cmd": "true"})).await.expect(200);
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("ran true"), &json!(0)));
    let path = format!("/v1/sandboxes/{id}/fs?path=/srv/a+b.txt&access_token=x");
    let written = world.send(world.request(Method::PUT, &path).body("hello")).await.expect(200);
    assert_eq!(written["bytes"], 5);
    let last = agent.lock().seen.last().unwrap().clone();
    assert_eq!(last, format!("PUT /agent/v1/sandboxes/{id}/fs?path=/srv/a+b.txt"), "the key stays here");
    assert_eq!(world.ids().await, [id]);
    assert_eq!(world.kinds(id).await, ["creating", "created"]);
    world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    assert_eq!((world.ids().await.len(), agent.ids().len()), (0, 0));
    world.get(&format!("/v1/sandboxes/{id}")).await.refused(404, "not_found");
    world.delete(&format!("/v1/sandboxes/{id}")).await.refused(404, "not_found");
}

#[tokio::test]
async fn an_alias_or_empty_body_selects_the_base_template() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let made = world.post("/v1/sandboxes", json!({"template": "ubuntu-24.04"})).await.expect(201);
    assert_eq!(made["template"], "base");
    let request =
        world.request(Method::POST, "/v1/sandboxes").header("content-type", "text/plain;charset=UTF-8");
    assert_eq!(world.send(request.body("")).await.expect(201)["template"], "base");
}

#[tokio::test]
async fn a_failed_create_leaves_no_row_and_no_machine() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for (code, status, retry) in [
        (ErrorCode::NoCapacity, 503, Some("5")),
        (ErrorCode::TemplateBaking, 503, Some("10")),
        (ErrorCode::DiskFull, 507, None),
        (ErrorCode::Internal, 500, None),
    ] {
        let said = "cannot write /srv/pandastack/x: the host says no";
        agent.lock().refuse_create.push_back((code, said));
        let answer = world.post("/v1/sandboxes", json!({})).await;
        assert_eq!(answer.headers.get("retry-after").map(|v| v.to_str().unwrap()), retry);
        let body = answer.refused(status, &code.as_str());
        let expected =
            if code == ErrorCode::Internal { Error::internal("").message } else { said.to_owned() };
        assert_eq!(body["error"], expected);
        assert_eq!((world.ids().await.len(), agent.ids().len()), (0, 0));
    }
}

#[tokio::test]
async fn a_create_finishes_after_its_client_disconnects() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    agent.lock().create_gate = Some(gate.clone());
    let request = world.request(Method::POST, "/v1/sandboxes").json(&json!({}));
    let call = tokio::spawn(request.send());
    eventually("the create reaches the agent", || async { agent.lock().creates == 1 }).await;
    call.abort();
    let _ = call.await;
    gate.notify_one();
    eventually("the sandbox runs", || async {
        let list = world.get("/v1/sandboxes").await.expect(200);
        list["items"][0]["status"] == "running"
    })
    .await;
}

#[tokio::test]
async fn idempotency_keys_replay_the_first_response() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let send = |key: &'static str, body: serde_json::Value| {
        let request = world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", key).json(&body);
        world.send(request)
    };
    let first = send("k1", json!({"ttl_seconds": 60})).await.expect(201);
    let again = send("k1", json!({"ttl_seconds": 60})).await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(again.expect(201), first);
    send("k1", json!({"ttl_seconds": 61})).await.refused(409, "idempotency_conflict");
    assert_eq!(agent.ids().len(), 1);
    // A refusal for lack of capacity is not stored for replay.
    agent.lock().refuse_create.push_back((ErrorCode::NoCapacity, "full"));
    send("k2", json!({})).await.refused(503, "no_capacity");
    send("k2", json!({})).await.expect(201);
    // A request in progress is not started again.
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    agent.lock().create_gate = Some(gate.clone());
    let (slow, ()) = tokio::join!(send("k3", json!({})), async {
        eventually("the create reaches the agent", || async { agent.lock().creates == 4 }).await;
        send("k3", json!({})).await.refused(409, "idempotency_conflict");
        gate.notify_one();
    });
    slow.expect(201);
    assert_eq!(agent.ids().len(), 3);
}

#[tokio::test]
async fn run_creates_runs_and_deletes() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let ran = world.post("/v1/run", json!({"cmd": "true"})).await.expect(200);
    assert_eq!((&ran["stdout"], &ran["engine"]), (&json!("ran true"), &json!("fake")));
    assert_eq!((world.ids().await.len(), agent.ids().len()), (0, 0));
    let late = world.post("/v1/run", json!({"cmd": "sleep"})).await.refused(504, "exec_timeout");
    assert!(late["error"].as_str().unwrap().contains("timeout"));
    assert_eq!((world.ids().await.len(), agent.ids().len()), (0, 0));
    // The client disconnects in the middle of the command.
    let call = tokio::spawn(world.request(Method::POST, "/v1/run").json(&json!({"cmd": "hang"})).send());
    eventually("it runs", || async {
        agent.lock().seen.iter().filter(|s| s.ends_with("/exec")).count() == 3
    })
    .await;
    call.abort();
    let _ = call.await;
    eventually("it is gone", || async { world.ids().await.is_empty() && agent.ids().is_empty() }).await;
}

#[tokio::test]
async fn a_run_returns_all_of_its_output() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for key in [None, Some("once")] {
        let mut request = world.request(Method::POST, "/v1/run").json(&json!({"cmd": "nuls"}));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let announced = response.content_length();
        let body = response.bytes().await.unwrap();
        assert_eq!(announced, Some(body.len() as u64));
        let ran: pandastack_types::api::RunResult = serde_json::from_slice(&body).unwrap();
        assert!(ran.result.stdout.len() == 5 << 20 && ran.result.stderr == ran.result.stdout);
        assert_eq!((ran.engine.as_str(), ran.result.exit_code), ("fake", 0));
        assert_eq!((world.ids().await.len(), agent.ids().len()), (0, 0));
    }
}

#[tokio::test]
async fn events_can_be_followed_and_resumed() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/events");
    let events = world.get(&path).await.expect(200);
    let last = events["events"][1]["id"].as_i64().unwrap();
    assert_eq!(world.get(&format!("{path}?tail=1")).await.expect(200)["events"][0]["id"], last);
    let stream = world.request(Method::GET, &format!("{path}?follow=1")).header("last-event-id", last);
    let stream = stream.send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream; charset=utf-8");
    world.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(204);
    world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    // The stream ends by itself once the sandbox is deleted.
    let text = stream.text().await.unwrap();
    let kinds: Vec<_> = text.split("\n\n").filter(|frame| frame.starts_with("id: ")).collect();
    assert_eq!(kinds.len(), 3, "{text}");
    for (frame, kind) in kinds.iter().zip(["paused", "deleting", "deleted"]) {
        assert!(frame.contains("\nevent: event\ndata: {") && frame.contains(kind), "{frame}");
    }
    world.get(&path).await.refused(404, "not_found");
}

#[tokio::test]
async fn short_lived_sandboxes_are_metered_and_leave_no_rows() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let rows = "SELECT (SELECT COUNT(*) FROM sandboxes) + (SELECT COUNT(*) FROM snapshots)";
    assert_eq!(world.count(rows).await, 0);
    for _ in 0..3 {
        let id = world.create().await;
        let used = pandastack_types::agent_api::Usage { cpu_ms: 500, sent_bytes: 9, ..Default::default() };
        agent.lock().sandboxes.get_mut(&id.parse().unwrap()).unwrap().usage = used;
        world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    }
    assert_eq!(world.count("SELECT SUM(creates) FROM usage_events").await, 3);
    assert_eq!(world.count("SELECT SUM(cpu_ms) FROM usage_events").await, 1500);
    assert_eq!(world.count("SELECT SUM(sent_bytes) FROM usage_events").await, 27);
    assert_eq!(world.count(rows).await, 0);
}
