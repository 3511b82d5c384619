//! Apps as far as control alone decides: refusals, and leftovers after a failure or a disconnect.
//! Tests on real machines show that apps build and serve.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use hmac::{Hmac, KeyInit, Mac};
use pandastack_types::limits::DEPLOYS_AT_ONCE_MAX;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::fake_agent::FakeAgent;
use crate::harness::{Answer, World, eventually};

const SECRET: &str = "hush";

/// An app whose deployments fail: the machines of these tests run nothing.
async fn make(world: &World, name: &str) {
    let settings = json!({"name": name, "git_url": "https://git.example/a.git", "webhook_secret": SECRET});
    world.post("/v1/apps", settings).await.expect(201);
}

async fn deploy(world: &World, name: &str) -> String {
    let begun = world.post(&format!("/v1/apps/{name}/deploys"), json!({})).await.expect(202);
    format!("/v1/apps/{name}/deploys/{}", begun["id"].as_str().unwrap())
}

async fn status(world: &World, deployment: &str) -> String {
    world.get(deployment).await.expect(200)["status"].as_str().unwrap().to_owned()
}

async fn deliver(world: &World, app: &str, delivery: &str, kind: &str, body: Value) -> Answer {
    let request = world.http.post(format!("{}/v1/hooks/apps/{app}", world.base));
    let request = request
        .header("x-gitlab-token", SECRET)
        .header("x-gitlab-event", kind)
        .header("x-gitlab-event-uuid", delivery);
    world.send(request.json(&body)).await
}

/// A push, as GitLab delivers it.
async fn push(world: &World, delivery: &str, before: &str, after: &str) -> Answer {
    let body = json!({"object_kind": "push", "ref": "refs/heads/main", "before": before, "after": after,
        "checkout_sha": after, "project_id": 1, "commits": [{"id": after, "message": "change"}]});
    deliver(world, "shop", delivery, "Push Hook", body).await
}

/// A push, as GitHub delivers it; only GitHub reports whether it was forced.
async fn github_push(world: &World, delivery: &str, before: &str, after: &str, forced: bool) -> Answer {
    let body = json!({"ref": "refs/heads/main", "before": before, "after": after, "forced": forced});
    deliver_github(world, "shop", delivery, "push", body).await
}

/// A delivery of GitHub, signed.
pub async fn deliver_github(world: &World, app: &str, delivery: &str, kind: &str, body: Value) -> Answer {
    let body = body.to_string();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let proof = mac.finalize().into_bytes();
    let proof: Vec<_> = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = world.http.post(format!("{}/v1/hooks/apps/{app}", world.base));
    let request = request
        .header("content-type", "application/json")
        .header("x-github-event", kind)
        .header("x-github-delivery", delivery)
        .header("x-hub-signature-256", format!("sha256={}", proof.concat()))
        .body(body);
    world.send(request).await
}

fn has_seen(agent: &FakeAgent, method: &str, part: &str) -> bool {
    agent.lock().seen.iter().any(|call| call.starts_with(method) && call.contains(part))
}

#[tokio::test]
async fn a_deployment_failure_is_recorded_once_storage_recovers() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let full = "CREATE TRIGGER full BEFORE UPDATE ON deployments WHEN NEW.status = 'failed' \
                BEGIN SELECT RAISE(ABORT, 'no room'); END";
    world.execute(full, &[]).await;
    let deployment = deploy(&world, "shop").await;
    eventually("it fails", || async { has_seen(&agent, "POST", "/processes") }).await;
    for _ in 0..20 {
        assert_eq!(status(&world, &deployment).await, "building");
    }
    world.execute("DROP TRIGGER full", &[]).await;
    eventually("its end is written", || async { status(&world, &deployment).await == "failed" }).await;
    eventually("its machine is gone", || async { agent.ids().is_empty() }).await;
}

#[tokio::test]
async fn a_failed_delivery_can_be_retried() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let busy = "CREATE TRIGGER busy BEFORE UPDATE ON apps BEGIN SELECT RAISE(ABORT, 'no room'); END";
    world.execute(busy, &[]).await;
    let failed = push(&world, "1", "0", "a").await;
    assert!(failed.status >= 500, "{}", failed.json);
    world.execute("DROP TRIGGER busy", &[]).await;
    push(&world, "1", "0", "a").await.expect(202);
    let again = push(&world, "1", "0", "a").await.expect(200);
    assert!(again["ignored"].as_str().unwrap().contains("already processed"), "{again}");
}

#[tokio::test]
async fn a_crash_neither_loses_nor_repeats_a_delivery() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let count = || async { world.count("SELECT COUNT(*) FROM deployments").await };
    // As if the server had ended before the deployment was written; the cleanup fails too.
    for cut in [
        "CREATE TRIGGER cut BEFORE INSERT ON deployments BEGIN SELECT RAISE(ABORT, 'no more'); END",
        "CREATE TRIGGER kept BEFORE DELETE ON app_deliveries BEGIN SELECT RAISE(ABORT, 'no more'); END",
    ] {
        world.execute(cut, &[]).await;
    }
    assert!(push(&world, "1", "0", "a").await.status >= 500);
    for trigger in ["DROP TRIGGER cut", "DROP TRIGGER kept"] {
        world.execute(trigger, &[]).await;
    }
    push(&world, "1", "0", "a").await.expect(202);
    // As if the server had ended before the delivery was recorded.
    world
        .execute(
            "CREATE TRIGGER cut BEFORE INSERT ON app_deliveries BEGIN SELECT RAISE(ABORT, 'no more'); END",
            &[],
        )
        .await;
    assert!(push(&world, "2", "a", "b").await.status >= 500);
    world.execute("DROP TRIGGER cut", &[]).await;
    assert_eq!(count().await, 2);
    let again = push(&world, "2", "a", "b").await.expect(200);
    assert!(again["ignored"].as_str().unwrap().contains("by this delivery"), "{again}");
    assert_eq!(count().await, 2);
}

#[tokio::test]
async fn a_late_push_deploys_nothing() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    github_push(&world, "2", "a", "b", false).await.expect(202);
    let late = github_push(&world, "1", "0", "a", false).await.expect(200);
    assert!(late["ignored"].as_str().unwrap().contains("a later one"), "{late}");
    github_push(&world, "3", "b", "a", true).await.expect(202);
}

#[tokio::test]
async fn an_ambiguous_push_is_decided_by_the_fetch() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    push(&world, "2", "a", "b").await.expect(202);
    // The push is late, or the branch was set back: the repository decides.
    push(&world, "1", "0", "a").await.expect(202);
}

#[tokio::test]
async fn concurrent_duplicate_deliveries_start_one_deployment() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    for round in 0..8 {
        let (delivery, commit) = (format!("d{round}"), format!("c{round}"));
        let sent = (0..4).map(|_| push(&world, &delivery, "0", &commit));
        let answers = futures::future::join_all(sent).await;
        let begun = answers.iter().filter(|answer| answer.status == 202).count();
        assert_eq!(begun, 1, "{:?}", answers.iter().map(|answer| &answer.json).collect::<Vec<_>>());
        // The others learn that it was processed, or is being processed and may be retried.
        assert!(answers.iter().all(|answer| [200, 202, 503].contains(&answer.status)));
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM deployments").await, 8);
}

#[tokio::test]
async fn a_preview_reopened_during_removal_is_recreated() {
    let world = Arc::new(World::start().await);
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    make(&world, "other").await;
    let change = |action: &str, at: &str| {
        json!({"object_attributes": {"iid": 7, "action": action, "updated_at": at, "source_branch": "fix",
            "target_branch": "main", "source_project_id": 1, "target_project_id": 1, "last_commit": {"id": "c".repeat(40)}}})
    };
    let kind = "Merge Request Hook";
    let open = change("open", "2026-01-01T00:00:01Z");
    deliver(&world, "shop", "1", kind, open).await.expect(202);
    let stay = "CREATE TRIGGER stay BEFORE DELETE ON apps BEGIN SELECT RAISE(ABORT, 'not yet'); END";
    world.execute(stay, &[]).await;
    let close = change("close", "2026-01-01T00:00:02Z");
    deliver(&world, "shop", "2", kind, close).await.expect(202);
    assert_eq!(world.get("/v1/apps/shop/previews").await.expect(200)["items"], json!([]));
    let reopen = change("reopen", "2026-01-01T00:00:03Z");
    // Two concurrent deliveries: one of them waits for the end of the old preview.
    let reopened = || {
        let (owner, reopen) = (Arc::clone(&world), reopen.clone());
        tokio::spawn(async move { deliver(&owner, "shop", "3", kind, reopen).await })
    };
    let (early, late) = futures::future::select(reopened(), reopened()).await.factor_first();
    let early = early.unwrap();
    assert!(early.headers.contains_key("retry-after"), "the other one may fail, so its host sends it again");
    let early = early.refused(503, "unavailable");
    assert!(early["error"].as_str().unwrap().contains("being processed"), "{early}");
    world.execute("DROP TRIGGER stay", &[]).await;
    // The deployment ends with another removal pass.
    deploy(&world, "other").await;
    let answer = late.await.unwrap().expect(202);
    assert_eq!(answer["preview"], "pr-7-shop");
    let previews = world.get("/v1/apps/shop/previews").await.expect(200);
    assert_eq!(previews["items"].as_array().unwrap().len(), 1, "{previews}");
    let again = deliver(&world, "shop", "3", kind, reopen).await.expect(200);
    assert!(again["ignored"].as_str().unwrap().contains("already processed"), "{again}");
}

/// Starts an upload and stops half way; the client disconnects on notification.
fn begin_upload(world: &World) -> (Arc<Notify>, JoinHandle<reqwest::Result<reqwest::Response>>) {
    let hang_up = Arc::new(Notify::new());
    let gate = Arc::clone(&hang_up);
    let body = stream::once(async { Ok(Bytes::from_static(b"x")) }).chain(stream::once(async move {
        gate.notified().await;
        Err(std::io::Error::other("the client went away"))
    }));
    let request = world.request(Method::POST, "/v1/apps/shop/deploys");
    let request = request.header("content-type", "application/x-tar").body(reqwest::Body::wrap_stream(body));
    (hang_up, tokio::spawn(request.send()))
}

#[tokio::test]
async fn machines_of_a_failed_deployment_are_deleted_when_its_upload_aborts() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let (hang_up, sent) = begin_upload(&world);
    eventually("the source is on its way", || async { has_seen(&agent, "PUT", "/fs?") }).await;
    let deployment = deploy(&world, "shop").await;
    eventually("it fails", || async { status(&world, &deployment).await == "failed" }).await;
    assert_eq!(agent.ids().len(), 2, "its machine, and that of the source");
    hang_up.notify_one();
    assert!(sent.await.unwrap().is_err());
    eventually("both machines are gone", || async { agent.ids().is_empty() }).await;
}

#[tokio::test]
async fn an_interrupted_upload_leaves_no_machine() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let (hang_up, sent) = begin_upload(&world);
    eventually("the source is on its way", || async { has_seen(&agent, "PUT", "/fs?") }).await;
    assert_eq!(agent.ids().len(), 1);
    hang_up.notify_one();
    assert!(sent.await.unwrap().is_err());
    eventually("its machine is gone", || async { agent.ids().is_empty() }).await;
    assert_eq!(world.get("/v1/apps/shop/deploys").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_canceled_queued_upload_leaves_no_machine() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    agent.lock().create_gate = Some(Arc::new(Notify::new()));
    for number in 0..DEPLOYS_AT_ONCE_MAX {
        let name = format!("busy{number}");
        make(&world, &name).await;
        deploy(&world, &name).await;
    }
    eventually("all turns are taken", || async { agent.lock().creates == DEPLOYS_AT_ONCE_MAX }).await;
    agent.lock().create_gate = None;
    make(&world, "shop").await;
    let request = world.request(Method::POST, "/v1/apps/shop/deploys");
    let request = request.header("content-type", "application/x-tar").body("source");
    let begun = world.send(request).await.expect(202);
    assert_eq!((begun["status"].as_str(), agent.ids().len()), (Some("queued"), 1));
    let deployment = format!("/v1/apps/shop/deploys/{}", begun["id"].as_str().unwrap());
    eventually("its log says that it waits", || async {
        let shown = world.get(&deployment).await.expect(200);
        shown["build_logs"].as_str().is_some_and(|log| log.matches("concurrent deployments").count() == 1)
    })
    .await;
    world.post(&format!("{deployment}/cancel"), json!({})).await.expect(202);
    assert_eq!(status(&world, &deployment).await, "canceled");
    eventually("its machine is gone", || async { agent.ids().is_empty() }).await;
}

#[tokio::test]
async fn only_deployed_apps_can_be_kept_awake() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let refused =
        world.post("/v1/apps/shop/keep-awake", json!({"seconds": 60})).await.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains("deploy it first"), "{refused}");
    world.post("/v1/apps/none/keep-awake", json!({"seconds": 60})).await.refused(404, "not_found");
    world.post("/v1/apps/shop/keep-awake", json!({})).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_schedule_calls_an_app_of_its_workspace() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop").await;
    let schedule = |target: Value| json!({"name": "nightly", "every_seconds": 3600, "target": target});
    let none = schedule(json!({"type": "app", "app_id": "none"}));
    world.post("/v1/schedules", none).await.refused(404, "not_found");
    for wrong in [json!({"path": "jobs"}), json!({"method": "BREW"}), json!({"headers": {"Host": "other"}})] {
        let mut target = json!({"type": "app", "app_id": "shop"});
        target.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        world.post("/v1/schedules", schedule(target)).await.refused(400, "bad_request");
    }
    let target = json!({"type": "app", "app_id": "shop", "path": "/jobs?all=1"});
    let made = world.post("/v1/schedules", schedule(target.clone())).await.expect(200);
    assert_eq!(made["target"], target);
    let trigger = format!("/v1/schedules/{}/trigger", made["id"].as_str().unwrap());
    let run = world.post(&trigger, json!({})).await.expect(200);
    assert_eq!(run["run_id"], run["id"]);
    assert_eq!(run["status"], "error");
    assert!(run["error"].as_str().unwrap().contains("deploy it first"), "{run}");
}
