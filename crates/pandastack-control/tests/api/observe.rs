use pandastack_types::agent_api::{AgentDenial, HostReport};
use reqwest::Method;
use serde_json::json;

use crate::harness::{World, eventually};

async fn entries(world: &World, query: &str) -> Vec<(String, String, u64)> {
    let list = world.get(&format!("/v1/audit?{query}")).await.expect(200);
    let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let entries = list["entries"].as_array().unwrap().iter();
    entries.map(|e| (text(e, "method"), text(e, "route"), e["status"].as_u64().unwrap())).collect()
}

#[tokio::test]
async fn changes_are_audited_and_reads_are_not() {
    let mut world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    world.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    world.post(&format!("/v1/sandboxes/{id}/exec"), json!({"cmd": " "})).await.refused(400, "bad_request");
    world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    eventually("all is written down", || async { entries(&world, "").await.len() == 3 }).await;
    let expect = [
        ("DELETE", "/v1/sandboxes/{id}", 204),
        ("POST", "/v1/sandboxes/{id}/exec", 400),
        ("POST", "/v1/sandboxes", 201),
    ]
    .map(|(method, route, status)| (method.to_owned(), route.to_owned(), status));
    assert_eq!(entries(&world, "").await, expect);
    assert_eq!(entries(&world, &format!("sandbox_id={id}")).await, expect[..2]);
    let list = world.get("/v1/audit?limit=1").await.expect(200);
    let newest = &list["entries"][0];
    assert!(world.token.starts_with(newest["token_prefix"].as_str().unwrap()));
    assert_eq!(newest["sandbox_id"], id.as_str());
    assert_eq!(newest["path"], format!("/v1/sandboxes/{id}"));
    assert_eq!(entries(&world, &format!("before={}", newest["id"])).await, expect[1..]);
    world.restart().await;
    assert_eq!(entries(&world, "").await, expect, "it survives a restart");
    for bad in ["limit=0", "limit=1001", "sandbox_id=%00", "before=x"] {
        world.get(&format!("/v1/audit?{bad}")).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn a_stop_flushes_the_audit_log() {
    let mut world = World::start().await;
    for _ in 0..300 {
        world.post("/v1/me/tokens", json!({"expires_in_days": 0})).await.refused(400, "bad_request");
    }
    world.stop().await;
    assert_eq!(world.count("SELECT COUNT(*) FROM audit").await, 300);
}

#[tokio::test]
async fn usage_is_summed() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let report = world.get("/v1/usage").await.expect(200);
    assert_eq!(report["total"]["creates"], 1, "{report}");
    assert_eq!(report["sandboxes"][0]["sandbox_id"], id.as_str());
    let past = world.get("/v1/usage?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z").await.expect(200);
    assert_eq!((&past["total"]["creates"], past["sandboxes"].as_array().unwrap().len()), (&json!(0), 0));
    for bad in ["from=x", "to=5", "from=2002-01-01T00:00:00Z&to=2001-01-01T00:00:00Z"] {
        world.get(&format!("/v1/usage?{bad}")).await.refused(400, "bad_request");
    }
}

/// Sends a request without a key.
async fn bare(world: &World, method: Method, target: &str) -> u16 {
    world.http.request(method, format!("{}{target}", world.base)).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn signed_urls_open_one_file_only() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let (id, other) = (world.create().await, world.create().await);
    let sign = format!("/v1/sandboxes/{id}/fs/sign");
    let signed = world.post(&sign, json!({"path": "/a b"})).await.expect(200);
    let target = signed["target"].as_str().unwrap();
    assert_eq!(signed["url"].as_str().unwrap(), format!("{}{target}", world.base));
    assert_eq!(bare(&world, Method::GET, target).await, 200);
    assert_eq!(bare(&world, Method::HEAD, target).await, 200);
    for (method, target) in [
        (Method::PUT, target.to_owned()),
        (Method::DELETE, target.to_owned()),
        (Method::GET, target.replace(&id, &other)),
        (Method::GET, target.replace("/a%20b", "/a")),
        (Method::GET, target.replace("/fs?", "/fs/stat?")),
        (Method::GET, format!("{target}&path=/etc")),
        (Method::GET, format!("{target}&write=append")),
        (Method::GET, target.replace("expires=", "expires=9")),
        (Method::GET, target.replace("key=pds_", "key=pds-")),
        (Method::GET, target.split("&signature").next().unwrap().to_owned()),
    ] {
        assert_eq!(bare(&world, method.clone(), &target).await, 401, "{method} {target}");
    }
    let put = world.post(&sign, json!({"path": "/x", "method": "PUT"})).await.expect(200);
    assert_eq!(bare(&world, Method::PUT, put["target"].as_str().unwrap()).await, 200);
    for bad in [
        json!({}),
        json!({"path": "x"}),
        json!({"path": "/x", "method": "DELETE"}),
        json!({"path": "/x", "expires_in_seconds": 0}),
        json!({"path": "/x", "expires_in_seconds": 604_801}),
    ] {
        world.post(&sign, bad).await.refused(400, "bad_request");
    }
    world.post(&sign, json!({"path": "/x", "expires_in_seconds": 604_800})).await.expect(200);
}

#[tokio::test]
async fn a_signed_url_is_revoked_with_its_key() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let key = world.post("/v1/me/tokens", json!({"label": "signer"})).await.expect(201);
    let url = format!("{}/v1/sandboxes/{id}/fs/sign", world.base);
    let request = world.http.post(url).bearer_auth(key["token"].as_str().unwrap());
    let signed = world.send(request.json(&json!({"path": "/f"}))).await.expect(200);
    let target = signed["target"].as_str().unwrap();
    assert_eq!(bare(&world, Method::GET, target).await, 200);
    world.delete(&format!("/v1/me/tokens/{}", key["prefix"].as_str().unwrap())).await.expect(204);
    assert_eq!(bare(&world, Method::GET, target).await, 401);
}

#[tokio::test]
async fn metrics_contain_no_sandbox_ids() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    world.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    let page = world.http.get(format!("{}/metrics", world.base)).send().await.unwrap().text().await.unwrap();
    assert!(!page.contains(&id));
    assert!(page.contains("pandastack_process_resident_bytes "), "{page}");
    assert!(page.contains("pandastack_host_sandboxes{host=\"host-a\"} "), "{page}");
}

#[tokio::test]
async fn network_denials_are_counted() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let denial = |count| AgentDenial {
        sandbox: id.parse().unwrap(),
        protocol: "tcp".to_owned(),
        address: Some([10, 0, 0, 1].into()),
        port: Some(80),
        name: None,
        limit: None,
        count,
    };
    let gone = AgentDenial { sandbox: "gone".parse().unwrap(), ..denial(100) };
    for denials in [vec![denial(1), denial(4), gone], vec![denial(2)]] {
        agent.send(HostReport { denials, ..agent.report_now() }).await;
    }
    let metrics = async |world: &World| world.get(&format!("/v1/sandboxes/{id}/metrics")).await.expect(200);
    assert_eq!(metrics(&world).await["egress_denied"], 7);
    assert_eq!(
        (&metrics(&world).await["pid"], &metrics(&world).await["host_rss_bytes"]),
        (&json!(7), &json!(0))
    );
    let page = world.http.get(format!("{}/metrics", world.base)).send().await.unwrap().text().await.unwrap();
    assert!(page.lines().any(|line| line == "pandastack_egress_denied_total 7"), "{page}");
    world.restart().await;
    agent.report().await;
    assert_eq!(metrics(&world).await["egress_denied"], 7, "it is written down");
    let fork = world.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).await.expect(201);
    let child =
        world.get(&format!("/v1/sandboxes/{}/metrics", fork["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(child["egress_denied"], 0, "a fork starts at zero");
}
