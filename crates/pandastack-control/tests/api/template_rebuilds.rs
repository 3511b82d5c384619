//! Rebuilds of templates: what they repeat, whose tags they take, and what their reports say.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{World, eventually};
use crate::template_builds::{begin, ended, no_machines};

const REBUILD: &str = "/v1/templates/mine/rebuild";

async fn rebuild(world: &World, path: &str) -> Value {
    let build = world.post(path, json!({})).await.expect(202);
    ended(world, build["id"].as_str().unwrap()).await
}

/// A status file of dpkg with one package.
fn dpkg(name: &str, version: &str) -> String {
    format!("Package: {name}\nStatus: install ok installed\nVersion: {version}\n")
}

/// Builds with files and this much in addition to a Dockerfile that uses them.
async fn build_with_files(world: &World, more: Value) -> Value {
    let mut body = json!({"name": "mine"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let build = world.post("/v1/templates/builds", body).await.expect(202);
    let id = build["id"].as_str().unwrap();
    let put = world.request(Method::PUT, &format!("/v1/templates/builds/{id}/files")).body("an archive");
    world.send(put).await.expect(204);
    let start = json!({"dockerfile": "FROM base\nCOPY a /a\nRUN one\n"});
    world.post(&format!("/v1/templates/builds/{id}/start"), start).await.expect(202);
    ended(world, id).await
}

#[tokio::test]
async fn a_rebuild_repeats_every_step_and_reports_what_changed() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let first = begin(&world, "mine", "FROM python:3.12\nRUN one\n").await;
    ended(&world, &first).await;
    let tag = world.request(Method::PUT, "/v1/templates/mine/tags/stable").json(&json!({"build_id": first}));
    world.send(tag).await.expect(204);
    {
        let mut inner = agent.lock();
        (inner.image_push, inner.commands) = (1, Vec::new());
        inner.inside.dpkg = [dpkg("bash", "1"), dpkg("bash", "2")].into();
    }
    let build = rebuild(&world, REBUILD).await;
    assert_eq!(
        (&build["status"], &build["cached_steps"], &build["rebuild_of"]),
        (&json!("done"), &json!(0), &json!(first)),
        "{build}"
    );
    let changes = &build["changes"];
    assert_eq!(changes["packages"], json!([{"name": "bash", "before": "1", "after": "2"}]), "{changes}");
    assert_ne!(changes["base_before"], changes["base_after"]);
    assert_eq!((&changes["base"], &changes["previous_build_id"]), (&json!("python:3.12"), &json!(first)));
    let ran = agent.lock().commands.iter().any(|(_, body)| body["argv"].to_string().contains("\"one\""));
    assert!(ran, "the step is not taken from the cache");
    no_machines(&agent).await;

    let template = world.get("/v1/templates/mine").await.expect(200);
    let version = &template["version"];
    assert_eq!((&version["build_id"], &version["changes"]), (&build["id"], changes));
    let stable = world.get("/v1/templates/mine:stable").await.expect(200);
    assert_eq!(stable["version"]["build_id"], first, "a tag that the build did not set stays");

    // The same image and packages.
    let unchanged = rebuild(&world, REBUILD).await["changes"].clone();
    assert_eq!(unchanged["base_before"], unchanged["base_after"]);
    assert_eq!(unchanged["packages"], Value::Null, "no dpkg");
    // Another tag of the same build is named, so it moves.
    rebuild(&world, "/v1/templates/mine:stable/rebuild").await;
    let moved = world.get("/v1/templates/mine:stable").await.expect(200);
    assert_eq!(moved["version"]["changes"]["previous_build_id"], first);
}

#[tokio::test]
async fn a_rebuild_moves_latest_even_if_the_build_had_kept_it() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let first = begin(&world, "mine", "FROM base\nRUN one\n").await;
    ended(&world, &first).await;
    let kept = json!({"name": "mine", "tags": ["v3"], "keep_latest": true});
    let second = world.post("/v1/templates/builds", kept).await.expect(202)["id"].clone();
    let second = second.as_str().unwrap();
    let start = json!({"dockerfile": "FROM base\nRUN two\n"});
    world.post(&format!("/v1/templates/builds/{second}/start"), start).await.expect(202);
    assert_eq!(ended(&world, second).await["status"], "done");
    let promote =
        world.request(Method::PUT, "/v1/templates/mine/tags/latest").json(&json!({"build_id": second}));
    world.send(promote).await.expect(204);
    let build = rebuild(&world, REBUILD).await;
    assert_eq!((&build["status"], &build["rebuild_of"]), (&json!("done"), &json!(second)), "{build}");
    for name in ["mine", "mine:v3"] {
        let found = world.get(&format!("/v1/templates/{name}")).await.expect(200);
        assert_eq!(found["version"]["build_id"], build["id"], "{name}");
    }
}

#[tokio::test]
async fn a_failed_rebuild_leaves_the_version_in_use() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let first = begin(&world, "mine", "FROM base\nRUN one\n").await;
    ended(&world, &first).await;
    agent.lock().inside.every_command = Some("fail");
    let failed = rebuild(&world, REBUILD).await;
    assert_eq!((&failed["status"], &failed["changes"]), (&json!("failed"), &Value::Null), "{failed}");
    let template = world.get("/v1/templates/mine").await.expect(200);
    assert_eq!(template["version"]["build_id"], first);
    agent.lock().inside.every_command = None;
    assert_eq!(rebuild(&world, REBUILD).await["rebuild_of"], first, "the failed one is not repeated");
    no_machines(&agent).await;
}

#[tokio::test]
async fn build_files_are_kept_on_request_and_go_with_the_template() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let build = build_with_files(&world, json!({})).await;
    assert_eq!(build["status"], "done", "{build}");
    let refused = world.post(REBUILD, json!({})).await.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains("build files were not kept"), "{refused}");

    let kept = build_with_files(&world, json!({"keep_inputs": true})).await;
    assert_eq!(kept["status"], "done", "{kept}");
    for _ in 0..2 {
        let again = rebuild(&world, REBUILD).await;
        assert_eq!(again["status"], "done", "the files are there: {again}");
    }
    let files = "SELECT COUNT(DISTINCT files_snapshot_id) FROM template_builds";
    assert_eq!(world.count(files).await, 1, "the files are kept once");
    no_machines(&agent).await;
    world.delete("/v1/templates/mine").await.expect(204);
    let layers = world.count("SELECT COUNT(DISTINCT snapshot_id) FROM template_layers").await;
    eventually("their snapshot is deleted", || async {
        i64::try_from(agent.lock().snapshots.len()).unwrap() == layers
    })
    .await;
}

#[tokio::test]
async fn templates_that_cannot_be_rebuilt_are_refused() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let start = json!({"dockerfile": "FROM base\nRUN one\n", "secrets": [{"id": "a", "value": "s3cret"}]});
    let body = json!({"name": "mine", "start": start});
    let build = world.post("/v1/templates/builds", body).await.expect(202);
    ended(&world, build["id"].as_str().unwrap()).await;
    let refused = world.post(REBUILD, json!({})).await.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains("secrets were not kept"), "{refused}");
    let schedule =
        json!({"name": "s", "every_seconds": 60, "target": {"type": "template", "template": "mine"}});
    world.post("/v1/schedules", schedule).await.refused(409, "conflict");

    let sandbox = world.create().await;
    let taken = world.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({})).await.expect(201);
    let body = json!({"snapshot_id": taken["id"], "name": "mine"});
    world.post("/v1/templates/publish", body).await.expect(201);
    world.post(REBUILD, json!({})).await.refused(409, "conflict");
    for (name, status, code) in [
        ("none", 404, "not_found"),
        ("base", 400, "bad_request"),
        ("mine@a-1", 400, "bad_request"),
        ("other%2Fmine", 403, "forbidden"),
        ("mine:none", 404, "not_found"),
    ] {
        world.post(&format!("/v1/templates/{name}/rebuild"), json!({})).await.refused(status, code);
    }
}

#[tokio::test]
async fn a_schedule_rebuilds_a_template_and_ends_with_its_build() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let first = begin(&world, "mine", "FROM base\nRUN one\n").await;
    ended(&world, &first).await;
    let target = json!({"type": "template", "template": "mine"});
    let body = json!({"name": "nightly", "cron": "@daily", "target": target});
    let schedule = world.post("/v1/schedules", body).await.expect(200);
    assert_eq!(schedule["timeout_seconds"], 3 * 3600);
    let path = format!("/v1/schedules/{}", schedule["id"].as_str().unwrap());
    let run = world.post(&format!("{path}/trigger"), json!({})).await.expect(200);
    assert_eq!(run["status"], "success", "{run}");
    let template = world.get("/v1/templates/mine").await.expect(200);
    let build = template["version"]["build_id"].as_str().unwrap();
    assert_ne!(build, first);
    assert!(run["stdout"].as_str().unwrap().contains(build), "{run}");

    agent.lock().inside.every_command = Some("fail");
    let run = world.post(&format!("{path}/trigger"), json!({})).await.expect(200);
    assert_eq!(run["status"], "error");
    assert!(run["error"].as_str().unwrap().contains("RUN one"), "{run}");

    // A run that is cancelled ends its build.
    {
        let mut inner = agent.lock();
        (inner.inside.every_command, inner.commands) = (Some("hang"), Vec::new());
    }
    let run = world.post(&format!("{path}/trigger"), json!({"wait": false})).await.expect(200);
    eventually("its command runs", || async { !agent.lock().commands.is_empty() }).await;
    let run = run["id"].as_str().unwrap();
    world.post(&format!("{path}/runs/{run}/cancel"), json!({})).await.expect(200);
    no_machines(&agent).await;
    let builds = world.get("/v1/templates/builds").await.expect(200);
    assert_eq!(builds[0]["phase"], "cancelled", "{builds}");
}
