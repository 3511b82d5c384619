use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;
use crate::harness::{World, eventually};

/// Starts a build of a Dockerfile without files.
pub async fn begin(world: &World, name: &str, dockerfile: &str) -> String {
    let body = json!({"name": name, "start": {"dockerfile": dockerfile}});
    let build = world.post("/v1/templates/builds", body).await.expect(202);
    build["id"].as_str().unwrap().to_owned()
}

pub async fn get_build(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/templates/builds/{id}")).await.expect(200)
}

/// Waits for the end of a build.
pub async fn ended(world: &World, id: &str) -> Value {
    eventually("the build ends", || async {
        ["done", "failed"].contains(&get_build(world, id).await["status"].as_str().unwrap())
    })
    .await;
    get_build(world, id).await
}

async fn log(world: &World, id: &str) -> String {
    let request = world.request(Method::GET, &format!("/v1/templates/builds/{id}/logs?follow=1"));
    request.send().await.unwrap().text().await.unwrap()
}

fn commands(agent: &FakeAgent) -> Vec<String> {
    let inner = agent.lock();
    inner
        .commands
        .iter()
        .map(|(_, body)| body["argv"].as_array().unwrap().last().unwrap().to_string())
        .collect()
}

pub async fn no_machines(agent: &FakeAgent) {
    eventually("no machine is left", || async { agent.ids().is_empty() }).await;
}

#[tokio::test]
async fn a_dockerfile_is_built_once_and_configures_its_sandboxes() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text = "FROM base\nENV A=1\nRUN one\nWORKDIR /srv\nUSER app\nRUN two\nWORKDIR /home/app\n";
    let id = begin(&world, "mine", text).await;
    let build = ended(&world, &id).await;
    assert_eq!(
        (&build["status"], &build["cached_steps"], &build["steps"]),
        (&json!("done"), &json!(0), &json!(7))
    );
    assert_eq!(commands(&agent), ["\"one\"", "\"two\""]);
    let (first, second) = {
        let inner = agent.lock();
        (inner.commands[0].1.clone(), inner.commands[1].1.clone())
    };
    assert_eq!(
        (&first["env"]["A"], &first["user"], &first["cwd"]),
        (&json!("1"), &json!("root"), &json!("/"))
    );
    assert_eq!((&second["user"], &second["cwd"]), (&json!("app"), &json!("/srv")));
    let owned = |seen: &String| seen.contains("/fs/mkdir?path=/home/app&user=app");
    assert!(agent.lock().seen.iter().any(owned), "{:?}", agent.lock().seen);
    let lines = log(&world, &id).await;
    assert!(lines.contains("data: #3 [3/7] RUN one\n") && lines.contains("#3 DONE "), "{lines}");
    no_machines(&agent).await;

    let again = begin(&world, "mine", text).await;
    assert_eq!(ended(&world, &again).await["cached_steps"], 4, "both commands and directories");
    let changed = begin(&world, "mine", "FROM base\nENV A=1\nRUN one\nRUN other\n").await;
    assert_eq!(ended(&world, &changed).await["cached_steps"], 1);
    assert_eq!(commands(&agent), ["\"one\"", "\"two\"", "\"other\""]);
    let spec = world.text(&format!("SELECT spec FROM template_builds WHERE id = '{id}'")).await;
    assert!(!spec.contains("RUN one"), "what was built is kept sealed: {spec}");

    // Another recipe of `base`, as after an upgrade of the host.
    agent.lock().image_key = "other";
    agent.report().await;
    let upgraded = begin(&world, "upgraded", text).await;
    assert_eq!(ended(&world, &upgraded).await["cached_steps"], 0);

    let tags = json!({"build_id": id});
    let put = world.request(Method::PUT, "/v1/templates/mine/tags/v1").json(&tags);
    world.send(put).await.expect(204);
    let template = world.get("/v1/templates/mine").await.expect(200);
    assert_eq!((&template["is_global"], &template["version"]["build_id"]), (&json!(false), &json!(changed)));
    let made =
        world.post("/v1/sandboxes", json!({"template": "mine:v1", "env": {"B": "2"}})).await.expect(201);
    assert_eq!((&made["template"], &made["boot_mode"]), (&json!("mine"), &json!("fork")));
    let listed = world.get("/v1/templates").await.expect(200);
    assert!(listed.as_array().unwrap().iter().any(|one| one["name"] == "mine"));
    world.post("/v1/sandboxes", json!({"template": "mine:v2"})).await.refused(404, "not_found");
    world.post("/v1/sandboxes", json!({"template": "mine", "cpu": 2})).await.refused(400, "bad_request");

    world.delete("/v1/templates/base").await.refused(403, "forbidden");
    world.delete("/v1/templates/mine").await.expect(204);
    world.get("/v1/templates/mine").await.refused(404, "not_found");
    world.post("/v1/sandboxes", json!({"template": "mine"})).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_failed_step_is_reported_and_cleaned_up() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = begin(&world, "mine", "FROM base\n\n# why\nRUN fail\n").await;
    let build = ended(&world, &id).await;
    let output = ["first", "the reason"];
    let expect = json!({"step": 2, "line": 4, "instruction": "RUN fail", "exit_code": 3, "output": output});
    assert_eq!((&build["status"], &build["failure"]), (&json!("failed"), &expect));
    assert!(build["error"].as_str().unwrap().contains("line 4 (`RUN fail`)"), "{build}");
    no_machines(&agent).await;
    assert!(agent.lock().snapshots.is_empty());
    world.post("/v1/sandboxes", json!({"template": "mine"})).await.refused(404, "not_found");
    for (dockerfile, part) in [
        ("FROM missing-here", "not found"),
        ("FROM --platform=linux/arm64 base", "linux/arm64"),
        ("FROM base\nRUN --network=none a", "--network=none"),
        ("FROM base\nCOPY --from=1 a b", "not an earlier stage"),
    ] {
        let id = begin(&world, "mine", dockerfile).await;
        let build = ended(&world, &id).await;
        assert!(build["error"].as_str().is_some_and(|error| error.contains(part)), "{dockerfile}: {build}");
    }
}

#[tokio::test]
async fn the_machine_of_a_failed_step_is_kept_on_request() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text = "FROM base\nENV A=1\nARG SECRET=2\nUSER app\nRUN fail\n";
    let start = json!({"dockerfile": text, "debug": true});
    let body = json!({"name": "mine", "start": start});
    let id = world.post("/v1/templates/builds", body).await.expect(202)["id"].as_str().unwrap().to_owned();
    let failure = ended(&world, &id).await["failure"].clone();
    assert_eq!(failure["config"], json!({"env": {"A": "1"}, "user": "app"}), "no ARG, which may be a secret");
    no_machines(&agent).await;
    let snapshot = failure["snapshot_id"].as_str().unwrap();
    let kept = world.get(&format!("/v1/snapshots/{snapshot}")).await.expect(200);
    assert!(kept["expires_at"].is_string(), "{kept}");
    world.post("/v1/sandboxes", json!({"from_snapshot": snapshot})).await.expect(201);
}

#[tokio::test]
async fn bad_build_requests_create_nothing() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for body in [
        json!({"name": "base"}),
        json!({"name": "a/b"}),
        json!({"name": "a", "tags": ["x y"]}),
        json!({"name": "a", "cpu": 99}),
        json!({"name": "a", "description": "x".repeat(4097)}),
        json!({"name": "a", "tags": (0..200).map(|tag| format!("t{tag}")).collect::<Vec<_>>()}),
        json!({"name": "a", "start": {"dockerfile": "FROM base\nFOO"}}),
        json!({"name": "a", "start": {"dockerfile": ""}}),
        json!({"name": "a", "other": 1}),
        json!({"name": "a", "keep_latest": true}),
        json!({"name": "a", "start": {"dockerfile": "FROM base", "steps": [{"run": {"command": " "}}]}}),
        json!({"name": "a", "start": {"dockerfile": "FROM base", "steps": [{"walk": "/"}]}}),
    ] {
        world.post("/v1/templates/builds", body.clone()).await.refused(400, "bad_request");
    }
    assert_eq!(
        world.get("/v1/templates/builds").await.expect(200).as_array().unwrap().len(),
        1,
        "the host's bake"
    );
    assert_eq!(agent.lock().creates, 0);
}

#[tokio::test]
async fn a_build_is_cancelled_while_its_command_runs() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = begin(&world, "mine", "FROM base\nRUN hang\n").await;
    eventually("its command runs", || async { !agent.lock().commands.is_empty() }).await;
    world.delete("/v1/templates/mine").await.refused(409, "conflict");
    world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.expect(202);
    let build = ended(&world, &id).await;
    assert_eq!((&build["phase"], &build["error"]), (&json!("cancelled"), &json!("the build was cancelled")));
    no_machines(&agent).await;
    world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.refused(409, "conflict");
    let waiting = world.post("/v1/templates/builds", json!({"name": "mine"})).await.expect(202);
    let id = waiting["id"].as_str().unwrap();
    world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.expect(202);
    assert_eq!(get_build(&world, id).await["phase"], "cancelled");
}

#[tokio::test]
async fn a_server_crash_fails_builds_and_deletes_machines() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = begin(&world, "mine", "FROM base\nRUN one\nRUN hang\n").await;
    eventually("its command runs", || async { agent.lock().commands.len() == 2 }).await;
    world.crash().await;
    world.start_again().await;
    agent.report().await;
    let build = ended(&world, &id).await;
    assert!(build["error"].as_str().unwrap().contains("the server restarted"), "{build}");
    no_machines(&agent).await;
    let again = begin(&world, "mine", "FROM base\nRUN one\nRUN two\n").await;
    assert_eq!(ended(&world, &again).await["cached_steps"], 1, "what was finished is not run again");
}

#[tokio::test]
async fn a_snapshot_is_published_as_a_template() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let sandbox = world.create().await;
    let taken = world.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({})).await.expect(201);
    let body = json!({"snapshot_id": taken["id"], "name": "mine", "tags": ["v1"]});
    let build = world.post("/v1/templates/publish", body).await.expect(201);
    assert_eq!(build["status"], "done");
    let made = world.post("/v1/sandboxes", json!({"template": "mine:v1"})).await.expect(201);
    assert_eq!(made["template"], "mine");
    let path = format!("/v1/snapshots/{}", taken["id"].as_str().unwrap());
    world.delete(&path).await.refused(409, "conflict");
    let tags = world.get("/v1/templates/mine/tags").await.expect(200);
    assert_eq!(tags.as_array().unwrap().iter().map(|one| &one["tag"]).collect::<Vec<_>>(), ["latest", "v1"]);
    world.delete("/v1/templates/mine/tags/v1").await.expect(204);
    world.delete("/v1/templates/mine/tags/v1").await.refused(404, "not_found");
    world.delete("/v1/templates/mine/tags/latest").await.refused(400, "bad_request");
    world.delete("/v1/templates/mine").await.expect(204);
    world.get(&path).await.expect(200);
    world.delete(&path).await.expect(204);
    let path = format!("/v1/sandboxes/{sandbox}/snapshots");
    let passing = world.post(&path, json!({"ttl_seconds": 3600})).await.expect(201);
    let body = json!({"snapshot_id": passing["id"], "name": "mine"});
    world.post("/v1/templates/publish", body).await.refused(400, "bad_request");
    let build = begin(&world, "other", "FROM base\nRUN one\n").await;
    ended(&world, &build).await;
    let layer = world.text("SELECT snapshot_id FROM template_layers").await;
    let body = json!({"snapshot_id": layer, "name": "mine"});
    world.post("/v1/templates/publish", body).await.refused(409, "conflict");
}
