use futures::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::harness::World;

#[tokio::test]
async fn only_valid_keys_are_accepted() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let url = format!("{}/v1/me", world.base);
    let refused = world.send(world.http.get(&url)).await.refused(401, "unauthorized");
    assert!(refused["error"].as_str().unwrap().contains("~/.config/pandastack/config.json"), "{refused}");
    let mut almost = world.token.clone();
    let last = if almost.pop() == Some('0') { '1' } else { '0' };
    almost.push(last);
    for bad in ["", "x", "pds_", "pds_00000000000000000000000000000000", &almost, "é"] {
        world
            .send(world.http.get(&url).header("authorization", format!("Bearer {bad}")))
            .await
            .refused(401, "unauthorized");
    }
    world.send(world.http.get(&url).header("authorization", "Basic eA==")).await.refused(401, "unauthorized");
    assert_eq!(world.get("/v1/me").await.expect(200)["token_prefix"], world.token[..12]);
    let query = format!("{url}?access_token={}", world.token);
    assert_eq!(world.send(world.http.get(query)).await.expect(200)["auth_method"], "api_key");
}

#[tokio::test]
async fn conflicting_keys_in_two_headers_are_refused() {
    let world = World::start().await;
    let other = world.post("/v1/me/tokens", json!({"label": "other"})).await.expect(201);
    let (good, other, bad) =
        (world.token.as_str(), other["token"].as_str().unwrap(), "pds_00000000000000000000000000000000");
    for path in ["/v1/me", "/v2/sandboxes"] {
        let sent = async |keys: &[&str]| {
            let request = world.http.get(format!("{}{path}", world.base));
            let request = keys.iter().fold(request, |request, key| request.header("x-api-key", *key));
            world.send(request).await.status
        };
        for (keys, status) in [
            (&[good][..], 200),
            (&[good, good], 200),
            (&[bad], 401),
            (&[good, bad], 401),
            (&[bad, good], 401),
            (&[good, other], 401),
        ] {
            assert_eq!(sent(keys).await, status, "{path} {keys:?}");
        }
    }
    let both = |key: &str| world.request(Method::GET, "/v1/me").header("x-api-key", key);
    world.send(both(good)).await.expect(200);
    world.send(both(other)).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn keys_are_shown_once_and_revoked_immediately() {
    let world = World::start().await;
    let made = world.post("/v1/me/tokens", json!({"label": "ci", "expires_in_days": 7})).await.expect(201);
    let (token, prefix) = (made["token"].as_str().unwrap(), made["prefix"].as_str().unwrap());
    assert_eq!(token.len(), 36);
    assert!(made["expires_at"].is_string());
    let list = world.get("/v1/me/tokens").await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert!(!list.to_string().contains(token) && !list.to_string().contains(&world.token));
    let as_ci = || world.http.get(format!("{}/v1/me", world.base)).bearer_auth(token);
    assert_eq!(world.send(as_ci()).await.expect(200)["token_label"], "ci");
    world.delete(&format!("/v1/me/tokens/{prefix}")).await.expect(204);
    world.send(as_ci()).await.refused(401, "unauthorized");
    world.delete(&format!("/v1/me/tokens/{prefix}")).await.refused(404, "not_found");
    world.delete(&format!("/v1/me/tokens/{}", &world.token[..12])).await.refused(409, "conflict");
}

#[tokio::test]
async fn the_first_key_survives_restarts_and_is_private() {
    let mut world = World::start().await;
    let token = world.token.clone();
    world.restart().await;
    assert_eq!(world.token, token);
    world.send(world.request(Method::GET, "/v1/me")).await.expect(200);
}

#[tokio::test]
async fn a_key_is_limited_to_its_role() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let sandbox = world.create().await;
    let key = async |scope: &str| {
        let made = world.post("/v1/me/tokens", json!({"scope": scope})).await.expect(201);
        assert_eq!(made["scope"], scope);
        let role = if scope == "read" { "viewer" } else { "developer" };
        assert_eq!((&made["role"], &made["operator"]), (&json!(role), &json!(false)));
        made["token"].as_str().unwrap().to_owned()
    };
    let (reads, uses) = (key("read").await, key("sandboxes").await);
    let send = async |key: &str, method: Method, path: &str| {
        let request = world.http.request(method, format!("{}{path}", world.base)).bearer_auth(key);
        world.send(request.json(&json!({"cmd": "true"}))).await
    };
    let path = format!("/v1/sandboxes/{sandbox}");
    send(&reads, Method::GET, &path).await.expect(200);
    for (method, tail) in [(Method::POST, "/exec"), (Method::POST, "/pause"), (Method::DELETE, "")] {
        let refused = send(&reads, method, &format!("{path}{tail}")).await.refused(403, "forbidden");
        assert!(refused["error"].as_str().unwrap().contains("--role developer"), "{refused}");
    }
    for path in ["/v1/hosts", "/v1/me/tokens"] {
        send(&uses, Method::GET, path).await.refused(403, "forbidden");
    }
    send(&uses, Method::POST, "/v1/me/tokens").await.refused(403, "forbidden");
    assert_eq!(send(&uses, Method::GET, "/v1/me").await.expect(200)["token_scope"], "sandboxes");
    send(&uses, Method::DELETE, &path).await.expect(204);
    world.post("/v1/me/tokens", json!({"scope": "everything"})).await.refused(400, "bad_request");
    world.post("/v1/me/tokens", json!({"role": "operator"})).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_rate_limited_workspace_gets_retry_after() {
    let world = World::start_with(|config| config.requests_per_second = std::num::NonZeroU32::new(5)).await;
    let answers = join_all((0..30).map(|_| world.get("/v1/me"))).await;
    let refused = answers.into_iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.headers["retry-after"], "1");
    refused.refused(429, "rate_limited");
    world.send(world.http.get(format!("{}/healthz", world.base))).await.expect(200);
}

#[tokio::test]
async fn quotas_are_enforced_and_named_in_the_error() {
    let world = World::start().await;
    let agent = world.agent("host-a", 65_536).await;
    let set = |quota: serde_json::Value| world.send(world.request(Method::PUT, "/v1/me/quota").json(&quota));
    let create = |body: serde_json::Value| world.post("/v1/sandboxes", body);
    let first = world.create().await;
    set(json!({"sandboxes": 2, "cpu": 3, "memory_mb": 2048})).await.expect(200);
    let over = |answer: crate::harness::Answer, name: &str| {
        let refused = answer.refused(429, "quota_exceeded");
        assert!(refused["error"].as_str().unwrap().contains(&format!("`{name}`")), "{refused}");
    };
    over(create(json!({"cpu": 3})).await, "cpu");
    over(create(json!({"memory_mb": 1664})).await, "memory_mb");
    let second = create(json!({"cpu": 2, "memory_mb": 1536})).await.expect(201);
    over(create(json!({})).await, "sandboxes");
    over(world.post(&format!("/v1/sandboxes/{first}/fork-tree"), json!({"count": 1})).await, "sandboxes");
    let report = world.get("/v1/me/quota").await.expect(200);
    assert_eq!(report["used"], json!({"sandboxes": 2, "cpu": 3, "memory_mb": 2048, "snapshot_mb": 0}));
    assert_eq!(agent.ids().len(), 2, "nothing was made of what was refused");
    world.delete(&format!("/v1/sandboxes/{}", second["id"].as_str().unwrap())).await.expect(204);
    create(json!({})).await.expect(201);
    // Snapshots are counted when they are there, and removed again when they are too many.
    set(json!({"snapshot_mb": 1, "requests_per_second": 5})).await.expect(200);
    world.post(&format!("/v1/sandboxes/{first}/snapshots"), json!({})).await.expect(201);
    over(world.post(&format!("/v1/sandboxes/{first}/snapshots"), json!({})).await, "snapshot_mb");
    assert_eq!(agent.lock().snapshots.len(), 1);
    let answers = join_all((0..30).map(|_| world.get("/v1/me"))).await;
    let slowed = answers.into_iter().find(|answer| answer.status == 429).unwrap();
    let slowed = slowed.refused(429, "rate_limited");
    assert!(slowed["error"].as_str().unwrap().contains("`requests_per_second`"), "{slowed}");
}

#[tokio::test]
async fn only_operator_keys_can_set_quotas() {
    let world = World::start().await;
    let made = world.post("/v1/me/tokens", json!({"role": "owner"})).await.expect(201);
    let plain = made["token"].as_str().unwrap();
    let request =
        |method: Method| world.http.request(method, format!("{}/v1/me/quota", world.base)).bearer_auth(plain);
    world.send(request(Method::GET)).await.expect(200);
    world.send(request(Method::PUT).json(&json!({}))).await.refused(403, "forbidden");
    let set = |quota: serde_json::Value| world.send(world.request(Method::PUT, "/v1/me/quota").json(&quota));
    set(json!({"requests_per_second": 0})).await.refused(400, "bad_request");
    set(json!({"sandbox": 1})).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_workspace_sets_the_default_visibility_of_sandboxes() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let before = world.create().await;
    let set = async |world: &World, body: serde_json::Value| {
        world.send(world.request(Method::PATCH, "/v1/me/workspace").json(&body)).await
    };
    let shown = world.get("/v1/me/workspace").await.expect(200);
    assert_eq!(shown, json!({"id": "default", "default_visibility": "unlisted"}));
    let changed = set(&world, json!({"default_visibility": "private"})).await.expect(200);
    assert_eq!(changed["default_visibility"], "private");
    assert_eq!(set(&world, json!({})).await.expect(200), changed, "what is absent stays");
    for bad in [json!({"default_visibility": "sometimes"}), json!({"visibility": "off"})] {
        set(&world, bad).await.refused(400, "bad_request");
    }
    world.restart().await;
    agent.report().await;
    let visibility = async |id: &str| {
        let preview = world.get(&format!("/v1/sandboxes/{id}/preview")).await.expect(200);
        preview["visibility"].as_str().unwrap().to_owned()
    };
    let after = world.create().await;
    assert_eq!(visibility(&after).await, "private", "also after a restart");
    assert_eq!(visibility(&before).await, "unlisted", "what exists keeps what it has");
    let own = world.post("/v1/sandboxes", json!({"visibility": "off"})).await.expect(201);
    assert_eq!(visibility(own["id"].as_str().unwrap()).await, "off");
    let made = world.post("/v1/me/tokens", json!({"scope": "sandboxes"})).await.expect(201);
    let request = |method: Method| {
        let url = format!("{}/v1/me/workspace", world.base);
        world.http.request(method, url).bearer_auth(made["token"].as_str().unwrap())
    };
    world.send(request(Method::GET)).await.expect(200);
    world.send(request(Method::PATCH).json(&json!({}))).await.refused(403, "forbidden");
}

#[tokio::test]
async fn guessing_keys_rate_limits_only_that_address() {
    let world = World::start().await;
    world.get("/v1/me").await.expect(200);
    let guess = |n: usize| {
        let key = format!("pds_{n:032x}");
        world.send(world.http.get(format!("{}/v1/me", world.base)).bearer_auth(key))
    };
    for n in 0..30 {
        guess(n).await.refused(401, "unauthorized");
    }
    let mut refused = false;
    for n in 30..40 {
        // A try is made good every two seconds, and this may take some.
        refused |= guess(n).await.status == 429;
    }
    assert!(refused);
    world.get("/v1/me").await.expect(200);
}
