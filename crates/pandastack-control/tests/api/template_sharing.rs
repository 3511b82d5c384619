//! Templates that a workspace shares with others.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, World, eventually};
use crate::template_builds::{begin, ended};
use crate::tenants::{key, send, world_with};

const SHARING: &str = "/v1/templates/mine/sharing";
const AS_READER: &str = "/v1/templates/default%2Fmine";

async fn share(world: &World, sharing: Value) -> Answer {
    world.send(world.request(Method::PUT, SHARING).json(&sharing)).await
}

async fn create(world: &World, key: &str, template: &str) -> Answer {
    send(world, key, Method::POST, "/v1/sandboxes", json!({"template": template})).await
}

async fn listed(world: &World, key: &str) -> bool {
    let all = send(world, key, Method::GET, "/v1/templates", json!({})).await.expect(200);
    all.as_array().unwrap().iter().any(|one| one["name"] == "default/mine")
}

/// Builds a template of the other workspace from `from`.
async fn build(world: &World, key: &str, from: &str) -> Value {
    let body = json!({"name": "own", "start": {"dockerfile": format!("FROM {from}\nENV A=2\nRUN one\n")}});
    let made = send(world, key, Method::POST, "/v1/templates/builds", body).await.expect(202);
    let path = format!("/v1/templates/builds/{}", made["id"].as_str().unwrap());
    let get = || async { send(world, key, Method::GET, &path, json!({})).await.expect(200) };
    eventually("the build ends", || async {
        ["done", "failed"].contains(&get().await["status"].as_str().unwrap())
    })
    .await;
    get().await
}

#[tokio::test]
async fn a_template_is_used_by_the_workspaces_that_it_is_shared_with() {
    let (world, _agent, shop) = world_with("shop").await;
    world.post("/v1/workspaces", json!({"id": "club"})).await.expect(201);
    let club = key(&world, "club", json!({"role": "owner"})).await;
    let id = begin(&world, "mine", "FROM base\nENV A=1\nRUN one\n").await;
    assert_eq!(ended(&world, &id).await["status"], "done");
    for key in [&shop, &club] {
        send(&world, key, Method::GET, AS_READER, json!({})).await.refused(404, "not_found");
        create(&world, key, "default/mine").await.refused(404, "not_found");
        assert!(!listed(&world, key).await);
    }
    let failed = build(&world, &shop, "template://default/mine").await;
    assert!(failed["error"].as_str().unwrap().contains("template `default/mine` not found"), "{failed}");

    let shared = share(&world, json!({"workspaces": ["shop", "not-there-yet", "default"]})).await.expect(200);
    let readers = json!({"public": false, "workspaces": ["not-there-yet", "shop"]});
    assert_eq!((&shared["name"], &shared["sharing"]), (&json!("mine"), &readers));
    assert!(listed(&world, &shop).await && !listed(&world, &club).await);
    create(&world, &club, "default/mine").await.refused(404, "not_found");
    let seen = send(&world, &shop, Method::GET, AS_READER, json!({})).await.expect(200);
    assert_eq!(
        (&seen["name"], &seen["shared_by"], &seen["sharing"], &seen["version"]["build_id"]),
        (&json!("default/mine"), &json!("default"), &Value::Null, &json!(id))
    );
    for name in ["default/mine".to_owned(), "default/mine:latest".to_owned(), format!("default/mine@{id}")] {
        let made = create(&world, &shop, &name).await.expect(201);
        assert_eq!(
            (&made["template"], &made["boot_mode"]),
            (&json!("default/mine"), &json!("fork")),
            "{name}"
        );
    }
    for name in ["default/mine:v9", "default/mine@none", "default/other", "club/mine"] {
        create(&world, &shop, name).await.refused(404, "not_found");
    }
    assert_eq!(build(&world, &shop, "template://default/mine").await["status"], "done");

    // A reader cannot change it.
    for (method, path) in [
        (Method::DELETE, AS_READER.to_owned()),
        (Method::PUT, format!("{AS_READER}/sharing")),
        (Method::PUT, SHARING.to_owned()),
    ] {
        send(&world, &shop, method, &path, json!({})).await.refused(404, "not_found");
    }
    let developer = key(&world, "default", json!({"role": "developer"})).await;
    send(&world, &developer, Method::PUT, SHARING, json!({"public": true})).await.refused(403, "forbidden");

    share(&world, json!({"public": true})).await.expect(200);
    create(&world, &club, "default/mine").await.expect(201);
    share(&world, json!({})).await.expect(200);
    for key in [&shop, &club] {
        create(&world, key, "default/mine").await.refused(404, "not_found");
    }
    // What was built from it stays.
    create(&world, &shop, "own").await.expect(201);
}

#[tokio::test]
async fn invalid_sharing_is_refused() {
    let (world, _agent, shop) = world_with("shop").await;
    let id = begin(&world, "mine", "FROM base\nRUN one\n").await;
    ended(&world, &id).await;
    let many: Vec<String> = (0..101).map(|number| format!("w{number}")).collect();
    for bad in [json!({"workspaces": many}), json!({"workspaces": ["Not A Name"]}), json!({"publik": true})] {
        share(&world, bad).await.refused(400, "bad_request");
    }
    let base = world.request(Method::PUT, "/v1/templates/base/sharing").json(&json!({"public": true}));
    world.send(base).await.refused(404, "not_found");

    // A suspended workspace shares nothing.
    let own = build(&world, &shop, "base").await;
    assert_eq!(own["status"], "done");
    let public = json!({"public": true});
    send(&world, &shop, Method::PUT, "/v1/templates/own/sharing", public).await.expect(200);
    let get = || async { world.get("/v1/templates/shop%2Fown").await };
    get().await.expect(200);
    world.post("/v1/workspaces/shop/suspend", json!({})).await.expect(200);
    get().await.refused(404, "not_found");
    world.post("/v1/sandboxes", json!({"template": "shop/own"})).await.refused(404, "not_found");
    world.post("/v1/workspaces/shop/resume", json!({})).await.expect(200);
    get().await.expect(200);
}
