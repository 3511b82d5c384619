//! Names and beginnings of ids instead of ids.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::World;

fn id_of(made: &Value) -> String {
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_sandbox_is_addressed_by_name_or_id_prefix() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let made = world.post("/v1/sandboxes", json!({"name": "web"})).await.expect(201);
    let id = id_of(&made);
    assert_eq!(made["name"], "web");
    assert!(
        made["expires_at"].is_string() && made["ttl_seconds"] == 3600,
        "the answer tells the lifetime: {made}"
    );
    for text in ["web", &id[..8], &id] {
        assert_eq!(world.get(&format!("/v1/sandboxes/{text}")).await.expect(200)["id"], id, "{text}");
        let run = world.post(&format!("/v1/sandboxes/{text}/exec"), json!({"cmd": "true"})).await;
        run.expect(200);
        world.get(&format!("/v1/sandboxes/{text}/processes")).await.expect(200);
    }
    let seen = agent.lock().seen.clone();
    assert!(seen.iter().all(|call| !call.contains("/web")), "the host knows ids only: {seen:?}");
    world.get(&format!("/v1/sandboxes/{}", &id[..3])).await.refused(404, "not_found");
    world.get("/v1/sandboxes/wed").await.refused(404, "not_found");

    let taken = world.post("/v1/sandboxes", json!({"name": "web"})).await.refused(409, "conflict");
    assert!(taken["error"].as_str().unwrap().contains("already has the name `web`"), "{taken}");
    for bad in ["", "Web", "a b", "-a", "a-", &id] {
        world.post("/v1/sandboxes", json!({"name": bad})).await.refused(400, "bad_request");
    }
    // A copy has no name, and a name is free again once its sandbox is deleted.
    let copy = world.post("/v1/sandboxes/web/fork", json!({})).await.expect(201);
    assert!(copy["name"].is_null(), "{copy}");
    world.delete("/v1/sandboxes/web").await.expect(204);
    world.get("/v1/sandboxes/web").await.refused(404, "not_found");
    world.post("/v1/sandboxes", json!({"name": "web"})).await.expect(201);
}

#[tokio::test]
async fn an_ambiguous_id_prefix_is_refused() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let (one, two) = (world.create().await, world.create().await);
    for (id, new) in [(&one, "abcd0001"), (&two, "abcd0002")] {
        world.execute("UPDATE sandboxes SET id = $1 WHERE id = $2", &[new, id]).await;
    }
    let several = world.get("/v1/sandboxes/abcd").await.refused(409, "conflict");
    let told = several["error"].as_str().unwrap();
    assert!(told.contains("abcd0001") && told.contains("abcd0002"), "{told}");
    assert_eq!(world.get("/v1/sandboxes/abcd0001").await.expect(200)["id"], "abcd0001");
}

#[tokio::test]
async fn a_snapshot_is_addressed_by_its_name() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/snapshots");
    let take = |body: Value| world.post(&path, body);
    let first = id_of(&take(json!({"name": "v1"})).await.expect(201));
    assert_eq!(world.get("/v1/snapshots/v1").await.expect(200)["id"], first);
    assert_eq!(world.get(&format!("/v1/snapshots/{}", &first[..8])).await.expect(200)["id"], first);
    let made = world.post("/v1/sandboxes", json!({"from_snapshot": "v1"})).await.expect(201);
    assert_eq!(made["from_snapshot"], first);
    take(json!({"name": "v1"})).await.refused(409, "conflict");
    let second = id_of(&take(json!({"name": "v1", "replace_name": true})).await.expect(201));
    assert_eq!(world.get("/v1/snapshots/v1").await.expect(200)["id"], second);
    assert!(world.get(&format!("/v1/snapshots/{first}")).await.expect(200)["name"].is_null());
    world.delete("/v1/snapshots/v1").await.expect(204);
    world.get("/v1/snapshots/v1").await.refused(404, "not_found");
}

#[tokio::test]
async fn databases_and_volumes_resolve_by_name_or_id_prefix() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let database = "INSERT INTO databases (id, workspace_id, state, sandbox_id, created_at_us, spec, name) \
         VALUES ('dbdb-0001', 'default', 'failed', NULL, 1, '{\"size\":\"1g\",\"name\":\"shop\"}', 'shop')";
    world.execute(database, &[]).await;
    for text in ["shop", "dbdb", "dbdb-0001"] {
        let found = world.get(&format!("/v1/databases/{text}")).await.expect(200);
        assert_eq!((&found["id"], &found["name"]), (&json!("dbdb-0001"), &json!("shop")), "{text}");
    }
    world.post("/v1/databases", json!({"name": "shop"})).await.refused(409, "conflict");
    let volume = "INSERT INTO volumes VALUES ('vols-0001', 'default', 'data', 'host-a', 'ready', 1, 1, \
         '{\"size_bytes\":1}')";
    world.execute(volume, &[]).await;
    for text in ["data", "vols", "vols-0001"] {
        assert_eq!(world.get(&format!("/v1/volumes/{text}")).await.expect(200)["name"], "data", "{text}");
    }
    world.get("/v1/volumes/dat").await.refused(404, "not_found");
}

#[tokio::test]
async fn bodies_take_names_and_beginnings_of_ids_and_keep_ids() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let sandbox = id_of(&world.post("/v1/sandboxes", json!({"name": "web"})).await.expect(201));
    let database = "INSERT INTO databases (id, workspace_id, state, sandbox_id, created_at_us, spec, name) \
         VALUES ('dbdb-0001', 'default', 'failed', NULL, 1, '{\"size\":\"1g\",\"name\":\"shop\"}', 'shop')";
    world.execute(database, &[]).await;
    let target = |kind: &str, text: &str| match kind {
        "sandbox" => json!({"type": "sandbox", "sandbox_id": text, "action": "wake"}),
        "command" => json!({"type": "command", "sandbox_id": text, "cmd": "true"}),
        _ => json!({"type": "sql", "database_id": text, "sql": "SELECT 1"}),
    };
    let send = |method: Method, path: &str, body: Value| world.send(world.request(method, path).json(&body));
    for (kind, field, id, texts) in [
        ("sandbox", "sandbox_id", sandbox.as_str(), ["web", &sandbox[..8]]),
        ("command", "sandbox_id", sandbox.as_str(), ["web", &sandbox[..8]]),
        ("sql", "database_id", "dbdb-0001", ["shop", "dbdb"]),
    ] {
        let schedule = json!({"name": kind, "every_seconds": 3600, "target": target(kind, texts[0])});
        let made = world.post("/v1/schedules", schedule).await.expect(200);
        assert_eq!(made["target"][field], id, "{kind}");
        let path = format!("/v1/schedules/{}", id_of(&made));
        let changed = send(Method::PATCH, &path, json!({"target": target(kind, texts[1])})).await.expect(200);
        assert_eq!(changed["target"][field], id, "{kind}");
        send(Method::PATCH, &path, json!({"target": target(kind, "none")})).await.refused(404, "not_found");
    }
    world.post("/v1/apps", json!({"name": "site"})).await.expect(201);
    let attached = send(Method::PUT, "/v1/apps/site/databases/shop", json!({})).await.expect(200);
    assert_eq!(attached["database"], "dbdb-0001");
    world.delete("/v1/apps/site/databases/shop").await.expect(204);
}
