//! Workspaces: permission to manage them, suspending, deleting, and rights of keys.

use pandastack_control::ControlConfig;
use pandastack_types::SandboxState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;
use crate::harness::{Answer, World, eventually};

/// A world with a second workspace, whose machines are emulated.
pub async fn world_with(workspace: &str) -> (World, FakeAgent, String) {
    world_with_config(workspace, |_| {}).await
}

/// The same with other settings.
pub async fn world_with_config(
    workspace: &str,
    change: impl FnOnce(&mut ControlConfig),
) -> (World, FakeAgent, String) {
    let world = World::start_with(|config| {
        config.tenancy.allow_emulated = true;
        config.requests_per_second = None;
        change(config);
    })
    .await;
    let agent = world.agent("host-a", 65_536).await;
    world.post("/v1/workspaces", json!({"id": workspace})).await.expect(201);
    let key = key(&world, workspace, json!({"role": "owner"})).await;
    (world, agent, key)
}

/// A key of a workspace.
pub async fn key(world: &World, workspace: &str, body: Value) -> String {
    let made = world.post(&format!("/v1/workspaces/{workspace}/tokens"), body).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

pub async fn send(world: &World, key: &str, method: Method, path: &str, body: Value) -> Answer {
    let request = world.http.request(method, format!("{}{path}", world.base)).bearer_auth(key);
    world.send(request.json(&body)).await
}

/// Hosts learn that they are shared, so that they do not oversell memory, and each machine's
/// workspace.
#[tokio::test]
async fn hosts_are_notified_when_they_are_shared() {
    let world = World::start_with(|config| config.tenancy.allow_emulated = true).await;
    let agent = world.agent("host-a", 65_536).await;
    assert!(!agent.report().await.shared);
    world.post("/v1/workspaces", json!({"id": "shop"})).await.expect(201);
    assert!(agent.report().await.shared);
    let owned = world.create().await;
    assert_eq!(agent.lock().workspaces[&owned.parse().unwrap()].as_str(), "default");
}

#[tokio::test]
async fn only_operators_manage_workspaces() {
    let (world, _agent, owner) = world_with("shop").await;
    let listed = world.get("/v1/workspaces").await.expect(200);
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
    assert_eq!(names, ["default", "shop"]);
    for bad in [json!({}), json!({"id": "A B"}), json!({"id": "x", "quota": {"requests_per_second": 0}})] {
        world.post("/v1/workspaces", bad).await.refused(400, "bad_request");
    }
    world.post("/v1/workspaces", json!({"id": "shop"})).await.refused(409, "conflict");
    world.get("/v1/workspaces/none").await.refused(404, "not_found");
    world.post("/v1/workspaces/none/tokens", json!({})).await.refused(404, "not_found");
    world.post("/v1/workspaces/default/suspend", json!({})).await.refused(409, "conflict");
    world.delete("/v1/workspaces/default").await.refused(409, "conflict");
    // An owner is not an operator, and cannot create an operator key.
    assert_eq!(send(&world, &owner, Method::GET, "/v1/me", json!({})).await.expect(200)["operator"], false);
    for (method, path) in [
        (Method::GET, "/v1/workspaces"),
        (Method::GET, "/v1/workspaces/default"),
        (Method::GET, "/v1/workspaces/none"),
        (Method::DELETE, "/v1/workspaces/shop"),
        (Method::PUT, "/v1/me/quota"),
        (Method::PUT, "/v1/workspaces/shop/quota"),
        (Method::GET, "/v1/hosts"),
    ] {
        send(&world, &owner, method, path, json!({})).await.refused(403, "forbidden");
    }
    send(&world, &owner, Method::POST, "/v1/me/tokens", json!({"operator": true}))
        .await
        .refused(403, "forbidden");
    let elsewhere = json!({"operator": true});
    world.post("/v1/workspaces/shop/tokens", elsewhere).await.refused(400, "bad_request");
    let second = world.post("/v1/me/tokens", json!({"operator": true})).await.expect(201);
    assert_eq!((&second["role"], &second["operator"]), (&json!("owner"), &json!(true)));
}

#[tokio::test]
async fn operators_set_workspace_quotas() {
    let (world, _agent, owner) = world_with("shop").await;
    let set = world.request(Method::PUT, "/v1/workspaces/shop/quota").json(&json!({"sandboxes": 1}));
    assert_eq!(world.send(set).await.expect(200)["quota"]["sandboxes"], 1);
    let create = || send(&world, &owner, Method::POST, "/v1/sandboxes", json!({}));
    create().await.expect(201);
    create().await.refused(429, "quota_exceeded");
    world.create().await;
    assert_eq!(world.get("/v1/workspaces/shop").await.expect(200)["used"]["sandboxes"], 1);
}

#[tokio::test]
async fn only_operators_delete_operator_keys_and_the_last_valid_one_is_kept() {
    let (world, _agent, _) = world_with("shop").await;
    let own = &world.token[..12];
    let owner = key(&world, "default", json!({"role": "owner"})).await;
    let path = format!("/v1/me/tokens/{own}");
    send(&world, &owner, Method::DELETE, &path, json!({})).await.refused(403, "forbidden");
    let expired = key(&world, "default", json!({"role": "owner", "operator": true})).await;
    world.execute("UPDATE tokens SET expires_at_us = 1 WHERE prefix = $1", &[&expired[..12]]).await;
    world.delete(&path).await.refused(409, "conflict");
    world.delete(&format!("/v1/me/tokens/{}", &expired[..12])).await.expect(204);
}

#[tokio::test]
async fn a_rotated_key_works_for_the_requested_overlap() {
    let (world, _agent, owner) = world_with("shop").await;
    let works = async |key: &str| send(&world, key, Method::GET, "/v1/me", json!({})).await.status == 200;
    let prefix = owner[..12].to_owned();
    let path = format!("/v1/me/tokens/{prefix}/rotate");
    let new = send(&world, &owner, Method::POST, &path, json!({"overlap_seconds": 3600})).await.expect(201);
    assert_eq!((&new["replaces"], &new["role"]), (&json!(prefix), &json!("owner")));
    assert!(new["replaced_until"].is_string());
    let next = new["token"].as_str().unwrap().to_owned();
    assert!(works(&owner).await && works(&next).await);
    // The rest of the overlap is cut off.
    send(&world, &next, Method::POST, &path, json!({"overlap_seconds": 0})).await.expect(201);
    assert!(!works(&owner).await && works(&next).await);
    send(&world, &next, Method::POST, &path, json!({})).await.refused(409, "conflict");
    let of_other = format!("/v1/me/tokens/{}/rotate", &world.token[..12]);
    send(&world, &next, Method::POST, &of_other, json!({})).await.refused(404, "not_found");
    let too_long = json!({"overlap_seconds": 99_999_999});
    send(&world, &next, Method::POST, &path, too_long).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_key_works_only_from_its_networks() {
    let (world, _agent, _) = world_with("shop").await;
    let here = key(&world, "shop", json!({"allow_from": ["127.0.0.0/8", "::1"]})).await;
    let elsewhere = key(&world, "shop", json!({"allow_from": ["192.0.2.0/24"]})).await;
    let me = |key: String| {
        let world = &world;
        async move { send(world, &key, Method::GET, "/v1/me", json!({})).await }
    };
    me(here.clone()).await.expect(200);
    me(here).await.expect(200);
    for _ in 0..2 {
        let refused = me(elsewhere.clone()).await.refused(403, "forbidden");
        assert!(refused["error"].as_str().unwrap().contains("127.0.0.1"), "{refused}");
    }
    let bad = json!({"allow_from": ["everywhere"]});
    world.post("/v1/workspaces/shop/tokens", bad).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_suspended_workspace_hibernates_and_resumes_unchanged() {
    let (world, agent, owner) = world_with("shop").await;
    let create = || send(&world, &owner, Method::POST, "/v1/sandboxes", json!({}));
    let (first, second) = (create().await.expect(201), create().await.expect(201));
    let ids: Vec<_> = [first, second].iter().map(|made| made["id"].as_str().unwrap().to_owned()).collect();
    let stranger = world.create().await;
    let state = |id: &str| agent.lock().sandboxes[&id.parse().unwrap()].state;
    let reason = json!({"reason": "invoice 7 is unpaid"});
    let told = world.post("/v1/workspaces/shop/suspend", reason).await.expect(200);
    assert_eq!(
        (&told["state"], &told["suspend_reason"]),
        (&json!("suspended"), &json!("invoice 7 is unpaid"))
    );
    assert!(ids.iter().all(|id| state(id) == SandboxState::Hibernated));
    assert_eq!(state(&stranger), SandboxState::Running, "nobody else's");
    for (method, path) in [
        (Method::GET, "/v1/me".to_owned()),
        (Method::POST, "/v1/sandboxes".to_owned()),
        (Method::POST, format!("/v1/sandboxes/{}/exec", ids[0])),
        (Method::POST, format!("/v1/sandboxes/{}/wake", ids[0])),
    ] {
        let refused = send(&world, &owner, method, &path, json!({"cmd": "true"})).await;
        let refused = refused.refused(403, "workspace_suspended");
        assert!(refused["error"].as_str().unwrap().contains("invoice 7 is unpaid"), "{refused}");
    }
    // Visitors of a preview get a notice, and wake nothing.
    let preview =
        world.http.get(format!("{}/", world.base)).header("host", format!("80-{}.localhost", ids[0]));
    let notice = preview.header("accept", "text/html").send().await.unwrap();
    assert_eq!(notice.status().as_u16(), 503);
    let page = notice.text().await.unwrap();
    assert!(page.contains("suspended") && !page.contains("invoice"), "{page}");
    // A sandbox that woke nevertheless, by a request in flight, is put to sleep again with the next
    // report.
    agent.set_state(&ids[1], SandboxState::Running);
    agent.report().await;
    eventually("it sleeps again", || async { state(&ids[1]) == SandboxState::Hibernated }).await;
    let back = world.post("/v1/workspaces/shop/resume", json!({})).await.expect(200);
    assert_eq!((&back["state"], back.get("suspend_reason")), (&json!("active"), None));
    let wake = format!("/v1/sandboxes/{}/wake", ids[0]);
    send(&world, &owner, Method::POST, &wake, json!({})).await.expect(200);
    let listed = send(&world, &owner, Method::GET, "/v1/sandboxes", json!({})).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_machine_that_cannot_hibernate_is_paused() {
    let (world, agent, owner) = world_with("shop").await;
    let made = send(&world, &owner, Method::POST, "/v1/sandboxes", json!({})).await.expect(201);
    agent.lock().refuse_hibernate = true;
    world.post("/v1/workspaces/shop/suspend", json!({})).await.expect(200);
    let id = made["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(agent.lock().sandboxes[&id].state, SandboxState::Paused);
}

#[tokio::test]
async fn deleting_a_workspace_deletes_its_resources() {
    let (mut world, agent, owner) = world_with("shop").await;
    let made =
        send(&world, &owner, Method::POST, "/v1/sandboxes", json!({"persistent": true})).await.expect(201);
    let id = made["id"].as_str().unwrap().to_owned();
    let snapshots = format!("/v1/sandboxes/{id}/snapshots");
    send(&world, &owner, Method::POST, &snapshots, json!({})).await.expect(201);
    let app = json!({"name": "shop", "git_url": "https://git.example/a.git"});
    send(&world, &owner, Method::POST, "/v1/apps", app).await.expect(201);
    let function = json!({"name": "f", "runtime": "python"});
    send(&world, &owner, Method::POST, "/v1/functions", function).await;
    let schedule = json!({"name": "s", "every_seconds": 60,
        "target": {"type": "http", "url": "https://example.com/"}});
    send(&world, &owner, Method::POST, "/v1/schedules", schedule).await;
    let stranger = world.create().await;
    // The host does not respond: the deletion is recorded, and completes when the host is back.
    agent.lock().is_down = true;
    world.delete("/v1/workspaces/shop").await.expect(204);
    send(&world, &owner, Method::GET, "/v1/me", json!({})).await.refused(401, "unauthorized");
    assert_eq!(world.get("/v1/workspaces/shop").await.expect(200)["state"], "deleting");
    world.post("/v1/workspaces/shop/resume", json!({})).await.refused(409, "conflict");
    world.post("/v1/workspaces/shop/tokens", json!({})).await.refused(404, "not_found");
    agent.lock().is_down = false;
    world.restart().await;
    agent.report().await;
    eventually("it is gone", || async { world.get("/v1/workspaces/shop").await.status == 404 }).await;
    assert_eq!(agent.ids(), [stranger]);
    assert!(agent.lock().snapshots.is_empty());
    for table in
        ["sandboxes", "snapshots", "apps", "functions", "schedules", "databases", "volumes", "tokens"]
    {
        let rows =
            world.text(&format!("SELECT COUNT(*) || '' FROM {table} WHERE workspace_id = 'shop'")).await;
        assert_eq!(rows, "0", "{table}");
    }
    world.post("/v1/workspaces", json!({"id": "shop"})).await.refused(409, "conflict");
}

#[tokio::test]
async fn tenants_do_not_share_an_emulated_host() {
    let world = World::start().await;
    let agent = world.agent("host-a", 65_536).await;
    world.create().await;
    let refused = world.post("/v1/workspaces", json!({"id": "shop"})).await.refused(409, "conflict");
    let setting = "allow_emulated_machines_between_tenants";
    assert!(refused["error"].as_str().unwrap().contains(setting), "{refused}");
    // Made before its first host reported: then machines are refused, also to the first workspace.
    let before = World::start().await;
    before.post("/v1/workspaces", json!({"id": "shop"})).await.expect(201);
    let _late = before.agent("host-b", 65_536).await;
    let refused = before.post("/v1/sandboxes", json!({})).await.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains(setting), "{refused}");
    drop(agent);
    let single =
        World::start_with(|config| config.tenancy.mode = pandastack_control::TenancyMode::Single).await;
    let refused = single.post("/v1/workspaces", json!({"id": "shop"})).await.refused(409, "conflict");
    assert!(refused["error"].as_str().unwrap().contains("tenancy"), "{refused}");
}
