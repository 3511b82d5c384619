//! Isolation between tenants and of the platform, attacked through the API.

use pandastack_control::{Control, ServeError};
use pandastack_types::domains::Domains;
use pandastack_types::link::LinkKey;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::{FakeAgent, SECRET};
use crate::harness::{Answer, World};

async fn at_example() -> (World, FakeAgent) {
    let domains = Domains::new(&["example.com".to_owned()], &["panda.example.com".to_owned()]).unwrap();
    let world = World::start_with(|config| config.domains = domains).await;
    let agent = world.agent("host-a", 8192).await;
    (world, agent)
}

/// A request with a host of one's choice.
async fn at_host(world: &World, host: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = world.request(method, path).header("host", host);
    world.send(body.iter().fold(request, |request, body| request.json(body))).await
}

#[tokio::test]
async fn apps_cannot_take_host_names_of_the_api() {
    let (world, _agent) = at_example().await;
    // For any `Host` header that the caller sends.
    for host in ["x.example.com", "panda.example.com", "localhost", "elsewhere.test"] {
        for name in ["panda", "api", "sandbox"] {
            let made = at_host(&world, host, Method::POST, "/v1/apps", Some(json!({"name": name}))).await;
            made.refused(400, "bad_request");
        }
    }
    world.post("/v1/apps", json!({"name": "shop"})).await.expect(201);
    let shown = at_host(&world, "x.example.com", Method::GET, "/v1/apps/shop", None).await.expect(200);
    assert_eq!(shown["url"], "http://shop.example.com");
    let healthz = async |host: &str| at_host(&world, host, Method::GET, "/healthz", None).await.status;
    // An app without a deployment answers 409 at its own names, and at no others.
    for (host, status) in [
        ("shop.example.com", 409),
        ("shop.localhost", 409),
        ("panda.example.com", 200),
        ("example.com", 200),
        ("shop.evil.test", 200),
        ("shop.panda.example.com", 200),
        ("a.shop.example.com", 200),
    ] {
        assert_eq!(healthz(host).await, status, "{host}");
    }
    // The console is served at the platform's names, not at a deleted app's.
    let first = async |host: &str| at_host(&world, host, Method::GET, "/", None).await.status;
    assert_eq!((first("panda.example.com").await, first("127.0.0.1:8080").await), (200, 200));
    assert_eq!((first("gone.example.com").await, first("www.evil.test").await), (404, 404));
}

#[tokio::test]
async fn only_new_domains_require_proof() {
    let (mut world, _agent) = at_example().await;
    world.post("/v1/apps", json!({"name": "shop"})).await.expect(201);
    // The domain has no DNS server, so proofs cannot be looked up.
    let added = world.post("/v1/apps/shop/domains", json!({"domain": "www.new.test"})).await.expect(201);
    assert_eq!(added["status"], "pending", "{added}");
    for inside in ["panda.example.com", "example.com", "other.example.com", "a.b.example.com", "x.localhost"]
    {
        world.post("/v1/apps/shop/domains", json!({"domain": inside})).await.refused(400, "bad_request");
    }
    world.stop().await;
    world
        .execute(
            "INSERT INTO app_domains (domain, app_id, created_at_us, verified_at_us)
             SELECT $1, id, created_at_us, created_at_us FROM apps WHERE name = 'shop'",
            &["www.old.test"],
        )
        .await;
    world.start_again().await;
    let healthz = async |host: &str| at_host(&world, host, Method::GET, "/healthz", None).await.status;
    assert_eq!((healthz("www.old.test").await, healthz("www.new.test").await), (409, 200));
    let listed = world.get("/v1/apps/shop/domains").await.expect(200);
    let states: Vec<_> = listed["domains"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(states, ["pending", "active"], "{listed}");
}

#[tokio::test]
async fn a_changed_link_secret_stops_the_start() {
    let mut world = World::start().await;
    let mut config = world.config().clone();
    world.stop().await;
    config.link_key = LinkKey::new(&[9; SECRET.len()]).unwrap();
    let refused = Control::bind(config.clone()).await.err().unwrap();
    assert!(matches!(refused, ServeError::SecretChanged { .. }), "{refused}");
    assert!(refused.to_string().contains("--accept-new-link-secret"), "{refused}");
    world.start_again().await;
    world.stop().await;
    config.accept_new_link_secret = true;
    drop(Control::bind(config.clone()).await.unwrap());
    config.accept_new_link_secret = false;
    drop(Control::bind(config).await.unwrap());
}

#[tokio::test]
async fn an_access_token_ends_on_key_deletion_or_revocation() {
    let world = World::start().await;
    let _agent = world.agent("a", 8192).await;
    let id = world.create().await;
    let key = world.post("/v1/me/tokens", json!({"label": "e2b"})).await.expect(201);
    let (key, prefix) = (key["token"].as_str().unwrap(), key["prefix"].as_str().unwrap());
    let reader = world.post("/v1/me/tokens", json!({"label": "r", "scope": "read"})).await.expect(201);
    let token_of = async |key: &str| {
        let request = world.http.get(format!("{}/sandboxes/{id}", world.base)).header("x-api-key", key);
        world.send(request).await.expect(200)["envdAccessToken"].clone()
    };
    assert_eq!(token_of(reader["token"].as_str().unwrap()).await, Value::Null, "a reader uses no sandboxes");
    let (first, second) = (token_of(key).await, token_of(&world.token).await);
    let opens = async |token: &Value| {
        let request = world.http.get(format!("{}/files?path=/f", world.base));
        let named = request.header("e2b-sandbox-id", &id).header("e2b-sandbox-port", "49983");
        let answer = world.send(named.header("x-access-token", token.as_str().unwrap())).await;
        answer.status != 401
    };
    assert!(opens(&first).await && opens(&second).await);
    world.delete(&format!("/v1/me/tokens/{prefix}")).await.expect(204);
    assert!(!opens(&first).await, "its key is gone");
    assert!(opens(&second).await, "another key's is not");
    world.post(&format!("/v1/sandboxes/{id}/preview/revoke"), json!({})).await.expect(200);
    assert!(!opens(&second).await, "revoked");
}

#[tokio::test]
async fn signatures_must_name_a_sandbox_and_invalid_ones_are_rate_limited() {
    let world = World::start().await;
    let _agent = world.agent("a", 8192).await;
    let id = world.create().await;
    let ask = async |path: String| world.send(world.http.get(format!("{}{path}", world.base))).await.status;
    assert_eq!(ask("/files?path=/f&signature=v1_x".to_owned()).await, 401);
    let wrong = format!("/files?path=/f&signature=v1_x&sandbox_id={id}");
    let mut tries = 0;
    while ask(wrong.clone()).await == 401 {
        tries += 1;
        assert!(tries < 10_000, "nobody slows this down");
    }
    let signed = format!("/v1/sandboxes/{id}/fs?path=/f&key=pds_00000000&expires=9999999999&signature=x");
    // Tries are made good with time; two of three at once are still refused.
    let three = [ask(signed.clone()).await, ask(signed.clone()).await, ask(signed).await];
    assert!(three.iter().filter(|status| **status == 429).count() >= 2, "signatures of ours, too: {three:?}");
    world.get("/v1/me").await.expect(200);
}
