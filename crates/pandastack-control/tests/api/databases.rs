//! Databases as far as control alone decides: refusals, and leftovers after a failure or a kill.
//! Tests on real machines show that databases answer queries.

use std::sync::Arc;

use pandastack_types::ErrorCode;
use pandastack_types::grant::TUNNEL_UPGRADE;
use reqwest::Method;
use serde_json::json;
use tokio::sync::Notify;

use crate::harness::{World, eventually};

#[tokio::test]
async fn invalid_database_requests_are_rejected_and_create_nothing() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for body in [
        json!({"size": "3g"}),
        json!({"size": "1g", "memory_mb": 2048}),
        json!({"label": "x".repeat(257)}),
        json!({"always_on": "yes"}),
    ] {
        world.post("/v1/databases", body).await.refused(400, "bad_request");
    }
    for path in ["/v1/databases/none", "/v1/databases/none/connection", "/v1/databases/A_B"] {
        world.get(path).await.refused(404, "not_found");
    }
    let query =
        world.request(Method::POST, "/v1/databases/none/proxy/v1/query").json(&json!({"sql": "SELECT 1"}));
    world.send(query).await.refused(401, "unauthorized");
    assert!(agent.ids().is_empty());
}

#[tokio::test]
async fn a_failed_database_create_leaves_nothing() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    agent.lock().refuse_create.push_back((ErrorCode::TemplateBaking, "being baked"));
    world.post("/v1/databases", json!({})).await.refused(503, "template_baking");
    // Made, but nothing in it answers.
    world.post("/v1/databases", json!({})).await.refused(502, "guest_unavailable");
    assert_eq!(world.get("/v1/databases").await.expect(200)["items"], json!([]));
    assert!(agent.ids().is_empty());
    assert_eq!(world.count("SELECT COUNT(*) FROM sandboxes").await, 0);
}

/// A create interrupted by a crash gets no response: the database is shown as failed, its machine
/// is deleted, and it can be deleted.
#[tokio::test]
async fn a_crash_during_create_fails_the_database() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let gate = Arc::new(Notify::new());
    agent.lock().create_gate = Some(gate.clone());
    let asked =
        tokio::spawn(world.request(Method::POST, "/v1/databases").json(&json!({"label": "a"})).send());
    eventually("it waits at the host", || async { agent.lock().creates == 1 }).await;
    let listed = world.get("/v1/databases").await.expect(200);
    assert_eq!(listed["items"][0]["status"], "provisioning");
    assert!(world.ids().await.is_empty(), "its machine is not among the sandboxes");
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    world.get(&format!("/v1/databases/{id}/connection")).await.refused(503, "unavailable");
    world.crash().await;
    asked.abort();
    agent.lock().create_gate = None;
    world.start_again().await;
    agent.report().await;
    eventually("it is given up", || async {
        let database = world.get(&format!("/v1/databases/{id}")).await.expect(200);
        database["status"] == "failed" && database["error"].as_str().unwrap().contains("create another")
    })
    .await;
    world.delete(&format!("/v1/databases/{id}")).await.expect(204);
    world.get(&format!("/v1/databases/{id}")).await.refused(404, "not_found");
    agent.report().await;
    eventually("no machine is left", || async { agent.ids().is_empty() }).await;
}

/// An interrupted failover: the record decides, however far the takeover got.
#[tokio::test]
async fn a_crash_during_failover_keeps_the_recorded_machine() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let (named, other) = (world.create().await, world.create().await);
    world.crash().await;
    // The record names the old machine, whose volume is already released; the new machine has
    // claimed its own.
    world.execute("UPDATE sandboxes SET owner = 'database:db-1'", &[]).await;
    for (volume, sandbox, owner, with_sandbox) in [
        ("old", &named, "database:db-1:replaced", "true"),
        ("new", &other, "database:db-1", "false"),
        ("foreign", &other, "database:db-2", "false"),
    ] {
        let spec = format!(r#"{{"size_bytes":1,"owner":"{owner}","delete_with_sandbox":{with_sandbox}}}"#);
        let row = "INSERT INTO volumes SELECT $1, workspace_id, $1, 'host-a', 'ready', 1, 1, $2 FROM sandboxes WHERE id = $3";
        world.execute(row, &[volume, &spec, sandbox]).await;
        let mount = "UPDATE sandboxes SET spec = json_set(spec, '$.volumes', json_array(json_object('id', $1, 'name', $1, \
             'path', '/v', 'read_only', json('false'), 'generation', 1))) WHERE id = $2 AND $1 <> 'foreign'";
        world.execute(mount, &[volume, sandbox]).await;
        if volume != "foreign" {
            world.execute("INSERT INTO volume_holders VALUES ($1, $2, 0)", &[volume, sandbox]).await;
        }
    }
    let row = "INSERT INTO databases (id, workspace_id, state, sandbox_id, created_at_us, spec) \
         SELECT 'db-1', workspace_id, 'ready', id, 1, '{\"size\":\"1g\"}' FROM sandboxes WHERE id = $1";
    world.execute(row, &[&named]).await;
    world.start_again().await;
    agent.report().await;
    eventually("one machine is left", || async { agent.ids() == [named.clone()] }).await;
    let volume = "SELECT COUNT(*) FROM volumes WHERE id = 'old' AND json_extract(spec, '$.owner') = 'database:db-1' \
         AND NOT json_extract(spec, '$.delete_with_sandbox')";
    assert_eq!(world.count(volume).await, 1, "the volume of the machine that is named is the database's");
    eventually("the other's volume goes with it", || async {
        world.count("SELECT COUNT(*) FROM volumes WHERE id = 'new' AND state <> 'deleting'").await == 0
    })
    .await;
    assert_eq!(world.count("SELECT COUNT(*) FROM volumes WHERE id = 'foreign' AND state = 'ready'").await, 1);
}

/// Root in such a machine is superuser of a server with all of a database's data.
#[tokio::test]
async fn sandbox_calls_are_refused_on_database_machines() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let machine = world.create().await;
    let copy = world.post(&format!("/v1/sandboxes/{machine}/snapshots"), json!({})).await.expect(201);
    // Wanted before an upgrade closed that way.
    let wanted = "UPDATE sandboxes SET spec = json_set(spec, '$.checkpoints', \
         json_object('every_seconds', 0, 'keep_last', 1)) WHERE id = $1";
    world.execute(wanted, &[&machine]).await;
    for owner in ["database:db-1", "drill:db-1"] {
        world.execute("UPDATE sandboxes SET owner = $1 WHERE id = $2", &[owner, &machine]).await;
        for (way, body) in [
            ("exec", json!({"cmd": "id"})),
            ("fork", json!({})),
            ("snapshots", json!({})),
            ("processes", json!({"cmd": "id"})),
            ("promote", json!({})),
            ("preview/revoke", json!({})),
            ("preview-token", json!({"port": 5432})),
            ("fs/sign", json!({"path": "/etc/passwd"})),
            ("keep-awake", json!({"seconds": 1})),
        ] {
            let said = world.post(&format!("/v1/sandboxes/{machine}/{way}"), body).await;
            said.refused(409, "conflict");
        }
        world.get(&format!("/v1/sandboxes/{machine}/fs?path=/etc/passwd")).await.refused(409, "conflict");
        world.get(&format!("/v1/sandboxes/{machine}/preview")).await.refused(409, "conflict");
        let checkpoints = json!({"checkpoints": {"every_seconds": 10, "keep_last": 1}});
        let patch = world.request(Method::PATCH, &format!("/v1/sandboxes/{machine}/lifecycle"));
        world.send(patch.json(&checkpoints)).await.refused(409, "conflict");
        // The same machine, spelled differently.
        let encoded = format!("%{:02x}{}", machine.as_bytes()[0], &machine[1..]);
        let ends = world.request(Method::PATCH, &format!("/v1/sandboxes/{encoded}/lifecycle"));
        world.send(ends.json(&json!({"ttl_seconds": 60}))).await.refused(409, "conflict");
        world.get(&format!("/v1/sandboxes/{machine}")).await.expect(200);
        for (way, body) in [("network", json!({})), ("preview", json!({"visibility": "unlisted"}))] {
            let put = world.request(Method::PUT, &format!("/v1/sandboxes/{machine}/{way}")).json(&body);
            world.send(put).await.refused(409, "conflict");
        }
        let tunnel = world
            .request(Method::GET, &format!("/v1/sandboxes/{machine}/tunnel?port=5432"))
            .header("connection", "upgrade")
            .header("upgrade", TUNNEL_UPGRADE);
        world.send(tunnel).await.refused(409, "conflict");
        let copied = world.post("/v1/sandboxes", json!({"from_snapshot": copy["id"]})).await;
        copied.refused(409, "conflict");
        agent.report().await;
        assert_eq!(agent.lock().snapshots.len(), 1, "no checkpoint of it is taken");
    }
}
