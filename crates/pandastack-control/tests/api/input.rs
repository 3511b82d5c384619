use reqwest::Method;
use serde_json::json;

use crate::harness::World;

/// Invalid input of every kind is refused with a code and a message, never with a 500.
#[tokio::test]
async fn bad_input_is_refused_with_a_code_and_message() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let nobody = "00000000-0000-4000-8000-000000000000";
    let before = agent.lock().seen.len();
    for (body, why) in [
        (json!({"cpu": 0}), "`cpu` must be 1 to 8"),
        (json!({"cpu": 9}), "`cpu` must be 1 to 8"),
        (json!({"memory_mb": 128}), "`memory_mb` must be 256"),
        (json!({"memory_mb": 32_896}), "`memory_mb` must be 256"),
        (json!({"memory_mb": 1000}), "in steps of 128"),
        (json!({"from_snapshot": "a", "cpu": 1}), "from the snapshot"),
        (json!({"ttl_seconds": 0}), "at least 1"),
        (json!({"ttl_seconds": 99_999_999}), "at most"),
        (json!({"ttl_seconds": "long"}), "ttl_seconds"),
        (json!({"ttl_seconds": -5}), ""),
        (json!({"metadata": {"": "x"}}), "metadata"),
        (json!({"metadata": {"n": 1}}), ""),
        (json!({"env": {"A=B": "x"}}), "env"),
        (json!({"template": "../x"}), "invalid template: `..` is not a valid workspace id"),
        (json!({"template": "a/../x"}), "invalid template name"),
        (json!({"volumes": [{"name": "V"}]}), "name"),
        (json!({"volumes": [{"name": "v", "path": "/"}]}), "mounted at"),
        (json!({"from_snapshot": "A B"}), ""),
        (json!([]), ""),
        (json!("text"), ""),
    ] {
        let refused = world.post("/v1/sandboxes", body.clone()).await.refused(400, "bad_request");
        assert!(refused["error"].as_str().unwrap().contains(why), "{body}: {refused}");
    }
    world.post("/v1/sandboxes", json!({"template": "nope"})).await.refused(404, "not_found");
    world.post("/v1/sandboxes", json!({"from_snapshot": nobody})).await.refused(404, "not_found");
    let exec = format!("/v1/sandboxes/{id}/exec");
    for body in [json!({}), json!({"cmd": " "}), json!({"cmd": 1}), json!({"cmd": "x", "timeout_seconds": 0})]
    {
        world.post(&exec, body).await.refused(400, "bad_request");
    }
    for path in ["fs", "fs?path=relative", "fs/stat", "fs?path="] {
        world.get(&format!("/v1/sandboxes/{id}/{path}")).await.refused(400, "bad_request");
    }
    world
        .post(&format!("/v1/sandboxes/{id}/fs/rename"), json!({"from": "/a"}))
        .await
        .refused(400, "bad_request");
    world
        .post(&format!("/v1/sandboxes/{id}/fork-tree"), json!({"count": 0}))
        .await
        .refused(400, "bad_request");
    world
        .post(&format!("/v1/sandboxes/{id}/fork-tree"), json!({"count": 101}))
        .await
        .refused(400, "bad_request");
    world.post(&format!("/v1/sandboxes/{id}/promote"), json!({})).await.refused(400, "bad_request");
    let patch = world.request(Method::PATCH, &format!("/v1/sandboxes/{id}/lifecycle")).json(&json!({}));
    world.send(patch).await.refused(400, "bad_request");
    world.get(&format!("/v1/sandboxes/{id}/events?tail=x")).await.refused(400, "bad_request");
    world.post("/v1/run", json!({})).await.refused(400, "bad_request");
    world.post("/v1/me/tokens", json!({"expires_in_days": 0})).await.refused(400, "bad_request");
    assert_eq!(agent.lock().seen.len(), before, "nothing of this reaches a host");
}

#[tokio::test]
async fn unknown_resources_return_404_and_wrong_methods_405() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let nobody = "00000000-0000-4000-8000-000000000000";
    for id in [nobody, "NOT-AN-ID", "a%20b", "a%2Fb"] {
        for path in ["", "/lifecycle", "/events", "/fs?path=/x", "/ports", "/logs"] {
            world.get(&format!("/v1/sandboxes/{id}{path}")).await.refused(404, "not_found");
        }
        for verb in ["exec", "fork", "pause", "hibernate", "wake", "snapshots", "promote"] {
            let body = if verb == "exec" { json!({"cmd": "true"}) } else { json!({}) };
            world.post(&format!("/v1/sandboxes/{id}/{verb}"), body).await.refused(404, "not_found");
        }
        world.get(&format!("/v1/snapshots/{id}")).await.refused(404, "not_found");
        world.get(&format!("/v1/templates/builds/{id}")).await.refused(404, "not_found");
        world.get(&format!("/v1/templates/{id}")).await.refused(404, "not_found");
        world.delete(&format!("/v1/me/tokens/{id}")).await.refused(404, "not_found");
    }
    for path in ["/v1", "/v1/nope", "/v1/sandboxes/a/b/c/d", "/v3", "/v3/sandboxes"] {
        world.get(path).await.refused(404, "not_found");
    }
    // The path is for WebSockets of a database driver; a plain GET gets an error that explains
    // this.
    assert_eq!(world.get("/v2").await.status, 400);
    for (method, path) in
        [(Method::PUT, "/v1/sandboxes"), (Method::POST, "/healthz"), (Method::PATCH, "/v1/me")]
    {
        world.send(world.request(method, path)).await.refused(405, "method_not_allowed");
    }
    // An id in percent-encoding is the same id.
    let id = world.create().await;
    let encoded = id.replace('-', "%2D");
    assert_eq!(world.get(&format!("/v1/sandboxes/{encoded}")).await.expect(200)["id"], id);
}

#[tokio::test]
async fn request_bodies_are_limited_and_must_be_json() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let post = |body: Vec<u8>| world.send(world.request(Method::POST, "/v1/sandboxes").body(body));
    post(b"{".to_vec()).await.refused(400, "bad_request");
    post(vec![0xff, 0xfe]).await.refused(400, "bad_request");
    post(vec![b' '; 1024 * 1024 + 1]).await.refused(413, "body_too_large");
    let id = world.create().await;
    let request = world.request(Method::PUT, &format!("/v1/sandboxes/{id}/fs?path=/f"));
    let request = request.header("content-length", (9_u64 << 30).to_string());
    // The client stops once it is refused; the refusal must come before any byte is forwarded.
    if let Ok(response) = request
        .body(reqwest::Body::wrap_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>()))
        .send()
        .await
    {
        assert_eq!(response.status(), 413);
    }
    let long = world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "x".repeat(256));
    world.send(long.body("{}")).await.refused(400, "bad_request");
}

#[tokio::test]
async fn request_ids_are_accepted_or_generated() {
    let world = World::start().await;
    let request = world.request(Method::GET, "/v1/nope").header("x-request-id", "mine-1");
    assert_eq!(world.send(request).await.refused(404, "not_found")["request_id"], "mine-1");
    let request = world.request(Method::GET, "/v1/nope").header("x-request-id", "with space");
    assert_ne!(world.send(request).await.refused(404, "not_found")["request_id"], "with space");
    assert!(world.get("/healthz").await.headers.contains_key("x-request-id"));
}
