//! Template builds: limits of one workspace, and missing resources.

use reqwest::Method;
use serde_json::json;

use crate::harness::{World, eventually};
use crate::template_builds::{begin, ended, get_build, no_machines};
use crate::tenants::{send, world_with};

/// A build that waits for its files.
async fn waiting(world: &World) -> String {
    let build = world.post("/v1/templates/builds", json!({"name": "mine"})).await.expect(202);
    build["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_unboundedly_expanding_dockerfile_fails() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let doubling = format!("ARG A=xxxxxxxxxxxxxxxx\n{}", "ARG A=$A$A\n".repeat(36));
    let deep = format!("ENV A={}{}", "${a:-".repeat(20_000), "}".repeat(20_000));
    for (text, part) in [
        (format!("{doubling}FROM base\n"), "use shorter values"),
        (format!("FROM base\n{doubling}"), "use shorter values"),
        (format!("FROM base\n{deep}\n"), "nested"),
    ] {
        let id = begin(&world, "mine", &text).await;
        let build = ended(&world, &id).await;
        assert!(build["error"].as_str().is_some_and(|error| error.contains(part)), "{build}");
    }
    let stages: String = (0..51).map(|number| format!("FROM base AS s{number}\n")).collect();
    let body = json!({"name": "mine", "start": {"dockerfile": stages}});
    world.post("/v1/templates/builds", body).await.refused(400, "bad_request");
}

#[tokio::test]
async fn one_workspace_does_not_block_the_builds_of_another() {
    let (world, agent, shop) = world_with("shop").await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        ids.push(begin(&world, name, "FROM base\nRUN hang\n").await);
    }
    eventually("two of them run", || async { agent.lock().commands.len() == 2 }).await;
    let body = json!({"name": "mine", "start": {"dockerfile": "FROM base\nRUN one\n"}});
    let made = send(&world, &shop, Method::POST, "/v1/templates/builds", body).await.expect(202);
    let path = format!("/v1/templates/builds/{}", made["id"].as_str().unwrap());
    eventually("the other workspace's build is done", || async {
        send(&world, &shop, Method::GET, &path, json!({})).await.expect(200)["status"] == "done"
    })
    .await;
    assert_eq!(get_build(&world, &ids[2]).await["status"], "queued");
    // Others can neither enter their machines nor keep them.
    let machine = agent.lock().commands[0].0.clone();
    let exec = world.post(&format!("/v1/sandboxes/{machine}/exec"), json!({"cmd": "id"})).await;
    let refused = exec.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains("template build"), "{refused}");
    let patch = world.request(Method::PATCH, &format!("/v1/sandboxes/{machine}/lifecycle"));
    world.send(patch.json(&json!({"persistent": true}))).await.refused(409, "conflict");
    for id in ids.iter().rev() {
        world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.expect(202);
        assert_eq!(ended(&world, id).await["phase"], "cancelled");
    }
    no_machines(&agent).await;
}

#[tokio::test]
async fn an_orphaned_build_can_be_cancelled() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = waiting(&world).await;
    world.execute("UPDATE template_builds SET state = 'running' WHERE id = $1", &[&id]).await;
    world.post(&format!("/v1/templates/builds/{id}/cancel"), json!({})).await.expect(202);
    let build = ended(&world, &id).await;
    assert_eq!((&build["status"], &build["phase"]), (&json!("failed"), &json!("cancelled")));
    no_machines(&agent).await;
}

#[tokio::test]
async fn a_build_with_expired_files_fails() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = waiting(&world).await;
    let put = world.request(Method::PUT, &format!("/v1/templates/builds/{id}/files")).body("an archive");
    world.send(put).await.expect(204);
    let machine = agent.ids().first().unwrap().to_string();
    world.delete(&format!("/v1/sandboxes/{machine}")).await.refused(409, "conflict");
    // As if it had expired.
    world.execute("UPDATE sandboxes SET owner = NULL WHERE id = $1", &[&machine]).await;
    world.delete(&format!("/v1/sandboxes/{machine}")).await.expect(204);
    let again = world.request(Method::PUT, &format!("/v1/templates/builds/{id}/files")).body("an archive");
    world.send(again).await.refused(409, "conflict");
    let body = json!({"dockerfile": "FROM base\nCOPY a /a\n"});
    world.post(&format!("/v1/templates/builds/{id}/start"), body).await.expect(202);
    let build = ended(&world, &id).await;
    assert!(build["error"].as_str().unwrap().contains("expired; build again"), "{build}");
    no_machines(&agent).await;
}

#[tokio::test]
async fn uploading_files_to_an_ended_build_leaves_no_machine() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = waiting(&world).await;
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    agent.lock().create_gate = Some(gate.clone());
    let put = world.request(Method::PUT, &format!("/v1/templates/builds/{id}/files")).body("an archive");
    let put = tokio::spawn(put.send());
    eventually("its machine is made", || async { agent.lock().creates == 1 }).await;
    world.execute("UPDATE template_builds SET state = 'failed' WHERE id = $1", &[&id]).await;
    agent.lock().create_gate = None;
    gate.notify_one();
    assert_eq!(put.await.unwrap().unwrap().status(), 409);
    no_machines(&agent).await;
}

#[tokio::test]
async fn cached_layers_are_evicted_for_a_new_build() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    // One snapshot of the fake agent fills it.
    let quota = world.request(Method::PUT, "/v1/me/quota").json(&json!({"snapshot_mb": 1}));
    world.send(quota).await.expect(200);
    let first = begin(&world, "first", "FROM base\nRUN one\n").await;
    assert_eq!(ended(&world, &first).await["status"], "done");
    let second = begin(&world, "second", "FROM base\nRUN two\n").await;
    let refused = ended(&world, &second).await;
    assert!(refused["error"].as_str().unwrap().contains("snapshot_mb"), "a version is kept: {refused}");
    world.delete("/v1/templates/first").await.expect(204);
    assert_eq!(agent.lock().snapshots.len(), 1, "its layer is cached");
    let third = begin(&world, "second", "FROM base\nRUN two\n").await;
    assert_eq!(ended(&world, &third).await["status"], "done");
    assert_eq!(agent.lock().snapshots.len(), 1, "the least recently used layer went");
}

#[tokio::test]
async fn a_deleted_workspace_leaves_no_template() {
    let (world, agent, shop) = world_with("shop").await;
    let build = async |name: &str, dockerfile: &str| {
        let body = json!({"name": name, "start": {"dockerfile": dockerfile}});
        let made = send(&world, &shop, Method::POST, "/v1/templates/builds", body).await.expect(202);
        made["id"].as_str().unwrap().to_owned()
    };
    let done = build("done", "FROM base\nRUN one\n").await;
    let path = format!("/v1/templates/builds/{done}");
    eventually("it is built", || async {
        send(&world, &shop, Method::GET, &path, json!({})).await.expect(200)["status"] == "done"
    })
    .await;
    build("running", "FROM base\nRUN hang\n").await;
    eventually("its command runs", || async { agent.lock().commands.len() == 2 }).await;
    send(&world, &shop, Method::POST, "/v1/templates/builds", json!({"name": "waiting"})).await.expect(202);
    world.delete("/v1/workspaces/shop").await.expect(204);
    let rows = "SELECT (SELECT COUNT(*) FROM templates) + (SELECT COUNT(*) FROM template_builds) \
                + (SELECT COUNT(*) FROM template_tags) + (SELECT COUNT(*) FROM template_layers) \
                + (SELECT COUNT(*) FROM template_build_log)";
    eventually("nothing of it is left", || async { world.count(rows).await == 0 }).await;
    no_machines(&agent).await;
    assert!(agent.lock().snapshots.is_empty());
}
