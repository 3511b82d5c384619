use reqwest::Method;
use serde_json::json;

use crate::harness::World;

#[tokio::test]
async fn only_good_keys_pass() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let url = format!("{}/v1/me", world.base);
    let refused = world.send(world.http.get(&url)).await.refused(401, "unauthorized");
    assert!(refused["error"].as_str().unwrap().contains("`pandastack up` writes a key"), "{refused}");
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
async fn keys_are_shown_once_and_die_at_once() {
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
async fn a_key_does_what_its_scope_says_and_no_more() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let sandbox = world.create().await;
    let key = async |scope: &str| {
        let made = world.post("/v1/me/tokens", json!({"scope": scope})).await.expect(201);
        assert_eq!(made["scope"], scope);
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
        assert!(refused["error"].as_str().unwrap().contains("--scope sandboxes"), "{refused}");
    }
    for path in ["/v1/hosts", "/v1/me/tokens"] {
        send(&uses, Method::GET, path).await.refused(403, "forbidden");
    }
    send(&uses, Method::POST, "/v1/me/tokens").await.refused(403, "forbidden");
    assert_eq!(send(&uses, Method::GET, "/v1/me").await.expect(200)["token_scope"], "sandboxes");
    send(&uses, Method::DELETE, &path).await.expect(204);
    world.post("/v1/me/tokens", json!({"scope": "everything"})).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_workspace_that_asks_too_fast_is_told_to_wait() {
    let world = World::start_with(|config| config.requests_per_second = std::num::NonZeroU32::new(5)).await;
    let mut answers = Vec::new();
    for _ in 0..30 {
        answers.push(world.get("/v1/me").await);
    }
    let refused = answers.into_iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.headers["retry-after"], "1");
    refused.refused(429, "rate_limited");
    world.send(world.http.get(format!("{}/healthz", world.base))).await.expect(200);
}
