//! Networks of keys and the limit of failed attempts hold wherever a key is used.

use reqwest::Method;
use serde_json::json;

use crate::harness::World;
use crate::tenants::{key, send, world_with};

const HERE: [&str; 2] = ["127.0.0.0/8", "::1"];

#[tokio::test]
async fn key_networks_apply_to_e2b_clients_and_function_urls() {
    let (world, _agent, owner) = world_with("shop").await;
    let here = key(&world, "shop", json!({ "allow_from": HERE })).await;
    let elsewhere = key(&world, "shop", json!({"allow_from": ["192.0.2.0/24"]})).await;
    let e2b = async |key: &str| {
        let request = world.http.get(format!("{}/v2/sandboxes", world.base)).header("x-api-key", key);
        world.send(request).await.status
    };
    assert_eq!((e2b(&here).await, e2b(&elsewhere).await), (200, 403));
    let body = json!({"name": "f", "runtime": "python"});
    let made = send(&world, &owner, Method::POST, "/v1/functions", body).await.expect(200);
    let host = format!("fn-{}.localhost", made["id"].as_str().unwrap());
    let call = async |key: &str| {
        let request = world.http.get(format!("{}/", world.base)).header("host", &host).bearer_auth(key);
        world.send(request).await.status
    };
    assert!(!matches!(call(&here).await, 401 | 403), "{}", call(&here).await);
    assert_eq!(call(&elsewhere).await, 403);
    let mut refused = false;
    for n in 0..40 {
        let guess = format!("pds_{n:032x}");
        refused |= if n % 2 == 0 { e2b(&guess).await } else { call(&guess).await } == 429;
    }
    assert!(refused, "guesses are free");
    assert_eq!(e2b(&here).await, 200, "a key that was good is looked at all the same");
}

#[tokio::test]
async fn sessions_and_signed_urls_are_limited_to_their_keys_networks() {
    let (mut world, agent, owner) = world_with("shop").await;
    let made = send(&world, &owner, Method::POST, "/v1/sandboxes", json!({})).await.expect(201);
    let id = made["id"].as_str().unwrap().to_owned();
    let here = key(&world, "shop", json!({ "allow_from": HERE, "role": "developer" })).await;
    let body = json!({"path": "/f", "method": "GET"});
    let signed = send(&world, &here, Method::POST, &format!("/v1/sandboxes/{id}/fs/sign"), body).await;
    let signed = signed.expect(200)["url"].as_str().unwrap().to_owned();
    let path = signed[signed.find("/v1/").unwrap()..].to_owned();
    let own = |request: reqwest::RequestBuilder, world: &World| {
        request.header("origin", &world.base).header("sec-fetch-site", "same-origin")
    };
    let sign_in = own(world.http.post(format!("{}/v1/console/session", world.base)), &world);
    let session = world.send(sign_in.json(&json!({ "api_key": here }))).await;
    let cookie = session.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    session.expect(200);
    let uses = async |world: &World| {
        let me = world.http.get(format!("{}/v1/me", world.base)).header("cookie", &cookie);
        let file = world.http.get(format!("{}{path}", world.base));
        (world.send(own(me, world)).await.status, world.send(file).await.status)
    };
    let (session, file) = uses(&world).await;
    assert!(session == 200 && !matches!(file, 401 | 403), "{session} {file}");
    world.stop().await;
    let narrow = "UPDATE tokens SET allow_from = $1 WHERE prefix = $2";
    world.execute(narrow, &["[\"192.0.2.0/24\"]", &here[..12]]).await;
    world.start_again().await;
    agent.report().await;
    assert_eq!(uses(&world).await, (403, 403));
}

#[tokio::test]
async fn the_internal_listener_ignores_unsigned_client_addresses() {
    let (world, _agent, _) = world_with("shop").await;
    let elsewhere = key(&world, "shop", json!({"allow_from": ["192.0.2.0/24"]})).await;
    let socket = pandastack_http::builder_for("http:").unix_socket(world.internal_socket()).build().unwrap();
    let request = socket.get("http://control/v1/me").bearer_auth(&elsewhere);
    world.send(request.header("x-pandastack-passed-on-for", "192.0.2.7")).await.refused(403, "forbidden");
}
