//! Mounts of steps: secrets, and files that are there while the step runs.

use serde_json::{Value, json};

use crate::harness::{World, eventually};
use crate::template_builds::{ended, no_machines};

async fn begin(world: &World, dockerfile: &str, secrets: Value) -> String {
    let start = json!({"dockerfile": dockerfile, "secrets": secrets});
    let build = world.post("/v1/templates/builds", json!({"name": "mine", "start": start})).await.expect(202);
    build["id"].as_str().unwrap().to_owned()
}

/// Positions of calls to the agent, in order.
fn positions(seen: &[String], parts: &[&str]) -> Vec<usize> {
    let position = |part: &&str| seen.iter().position(|call| call.contains(*part));
    parts.iter().map(|part| position(part).unwrap_or_else(|| panic!("{part}: {seen:?}"))).collect()
}

#[tokio::test]
async fn a_machine_forgets_a_secret_before_it_is_kept() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text =
        "FROM base\nRUN --mount=type=secret,id=token --mount=type=secret,id=token,env=TOKEN one\nRUN two\n";
    let id = begin(&world, text, json!([{"id": "token", "value": "s3cret"}])).await;
    assert_eq!(ended(&world, &id).await["status"], "done");
    let (seen, ran) = {
        let inner = agent.lock();
        (inner.seen.clone(), inner.commands.clone())
    };
    assert_eq!((&ran[0].1["env"]["TOKEN"], &ran[1].1["env"]["TOKEN"]), (&json!("s3cret"), &Value::Null));
    let order = positions(
        &seen,
        &[
            "PUT /agent/v1/sandboxes",
            "/fs/tar?path=/run/secrets",
            "/processes?follow",
            "DELETE /agent/v1/sandboxes",
            "/hibernate",
            "/wake",
            "/snapshots",
        ],
    );
    assert!(order.is_sorted(), "{order:?}: {seen:?}");
    no_machines(&agent).await;

    // Another content changes nothing, another mount does.
    let id = begin(&world, text, json!([{"id": "token", "value": "other"}])).await;
    assert_eq!(ended(&world, &id).await["cached_steps"], 2);
    let id = begin(&world, "FROM base\nRUN one\n", json!([])).await;
    assert_eq!(ended(&world, &id).await["cached_steps"], 0);
}

#[tokio::test]
async fn secrets_are_sealed_until_the_build_ends() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = begin(&world, "FROM base\nRUN hang\n", json!([{"id": "a", "value": "s3cret"}])).await;
    eventually("its command runs", || async { agent.lock().commands.len() == 1 }).await;
    let spec = format!("SELECT spec FROM template_builds WHERE id = '{id}'");
    let stored = world.text(&spec).await;
    assert!(stored.contains("secrets") && !stored.contains("s3cret"), "{stored}");
    world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.expect(202);
    ended(&world, &id).await;
    assert!(!world.text(&spec).await.contains("secrets"), "nothing is kept after the end");
}

#[tokio::test]
async fn missing_and_invalid_secrets_are_named() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let asks = |options: &str| format!("FROM base\nRUN --mount=type=secret,id=token{options} one\n");
    let id = begin(&world, &asks(",required=true"), json!([])).await;
    let build = ended(&world, &id).await;
    assert!(build["error"].as_str().unwrap().contains("--secret id=token"), "{build}");
    assert_eq!(build["failure"]["line"], 2);
    let id = begin(&world, &asks(""), json!([])).await;
    assert_eq!(ended(&world, &id).await["status"], "done", "as if it had not asked");
    let id = begin(&world, &asks(",mode=rw"), json!([])).await;
    assert!(ended(&world, &id).await["error"].as_str().unwrap().contains("`mode=rw`"));

    let twice = json!([{"id": "a", "value": "1"}, {"id": "a", "value": "2"}]);
    for secrets in [twice, json!([{"id": "a b", "value": "1"}])] {
        let start = json!({"dockerfile": "FROM base\n", "secrets": secrets});
        let body = json!({"name": "mine", "start": start});
        world.post("/v1/templates/builds", body).await.refused(400, "bad_request");
    }
    let steps = json!([{"run": {"command": "one", "secrets": ["absent"]}}]);
    let start = json!({"dockerfile": "FROM base\n", "steps": steps});
    let build = world.post("/v1/templates/builds", json!({"name": "mine", "start": start})).await.expect(202);
    let build = ended(&world, build["id"].as_str().unwrap()).await;
    assert!(build["error"].as_str().unwrap().contains("--secret id=absent"), "{build}");
}

#[tokio::test]
async fn files_of_a_mount_are_gone_before_the_machine_is_kept() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text = "FROM base AS made\nFROM base\nRUN --mount=type=bind,source=go.mod,target=/go.mod \
                --mount=from=made,source=/a,target=/etc/nginx one\n";
    let id = begin(&world, text, json!([])).await;
    let build = ended(&world, &id).await;
    assert_eq!(build["status"], "done", "{build}");
    let seen = agent.lock().seen.clone();
    // What the image has at a target is moved aside.
    let parts = ["/fs/tar?path=/pandastack-mounts", "/fs/rename", "/processes?follow"];
    let mut order = positions(&seen, &parts);
    for path in ["/go.mod", "/etc/nginx", "/pandastack-mounts"] {
        let is_removal =
            |call: &String| call.starts_with("DELETE") && call.ends_with(&format!("/fs?path={path}"));
        order.push(seen.iter().position(is_removal).unwrap_or_else(|| panic!("{path}: {seen:?}")));
    }
    order.extend(positions(&seen, &["/snapshots"]));
    assert!(order.is_sorted(), "{order:?}: {seen:?}");
    let count = |part: &str| seen.iter().filter(|call| call.contains(part)).count();
    assert_eq!((count("/fs/rename"), count("/hibernate")), (3, 0), "one is not there: {seen:?}");
    no_machines(&agent).await;
    let id = begin(&world, text, json!([])).await;
    assert_eq!(ended(&world, &id).await["cached_steps"], 1);

    let refused = [
        ("type=ssh", "use type=bind"),
        ("type=bind,from=7,target=/x", "not an earlier stage"),
        ("type=bind,from=team/missing,target=/x", "(`RUN --mount=from=team/missing`): image `missing`"),
    ];
    for (mount, part) in refused {
        let id = begin(&world, &format!("FROM base\nRUN --mount={mount} one\n"), json!([])).await;
        let build = ended(&world, &id).await;
        assert!(build["error"].as_str().unwrap().contains(part), "{build}");
    }
}
