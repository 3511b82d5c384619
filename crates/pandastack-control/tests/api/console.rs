//! Sessions of the web console, the checks on its cookie, and the events that it follows.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::harness::{Answer, World};

const COOKIE: &str = "__Host-pandastack-console";

/// A browser on the console's own page.
struct Browser<'a> {
    world: &'a World,
    cookie: String,
}

impl<'a> Browser<'a> {
    async fn sign_in(world: &'a World, key: &str) -> Self {
        let request = world.http.post(format!("{}/v1/console/session", world.base));
        let answer = world.send(own(world, request).json(&json!({ "api_key": key }))).await;
        let set = answer.headers["set-cookie"].to_str().unwrap().to_owned();
        answer.expect(200);
        for part in ["Path=/", "Secure", "HttpOnly", "SameSite=Strict"] {
            assert!(set.contains(part), "{set}");
        }
        assert!(!set.contains(key) && !set.contains("Domain"), "{set}");
        let cookie = set.split(';').next().unwrap().to_owned();
        assert!(cookie.starts_with(COOKIE), "{cookie}");
        Self { world, cookie }
    }

    /// A request that has the cookie and nothing else.
    fn bare(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.world.http.request(method, format!("{}{path}", self.world.base));
        request.header("cookie", &self.cookie)
    }

    async fn send(&self, method: Method, path: &str) -> Answer {
        self.world.send(own(self.world, self.bare(method, path))).await
    }
}

/// Adds the headers that browsers send with calls of the console's own pages.
fn own(world: &World, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
    request
        .header("origin", &world.base)
        .header("sec-fetch-site", "same-origin")
        .header("sec-fetch-dest", "empty")
}

#[tokio::test]
async fn a_console_session_represents_its_key_until_sign_out() {
    let world = World::start().await;
    let browser = Browser::sign_in(&world, &world.token).await;
    let answer = browser.send(Method::GET, "/v1/me").await;
    assert!(answer.headers["content-security-policy"].to_str().unwrap().contains("sandbox"));
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.expect(200)["token_prefix"], world.token[..12]);
    let answer = browser.send(Method::DELETE, "/v1/console/session").await;
    assert!(answer.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    answer.expect(204);
    browser.send(Method::GET, "/v1/me").await.refused(401, "unauthorized");
    // Signing out twice is not an error.
    browser.send(Method::DELETE, "/v1/console/session").await.expect(204);
}

#[tokio::test]
async fn only_the_consoles_own_pages_may_use_a_session() {
    let world = World::start().await;
    let browser = Browser::sign_in(&world, &world.token).await;
    let host = world.base.strip_prefix("http://").unwrap();
    let preview = format!("http://3000-abc.{host}");
    for headers in [
        vec![],
        vec![("origin", preview.as_str())],
        vec![("origin", "null")],
        vec![("sec-fetch-site", "same-site")],
        vec![("sec-fetch-site", "none")],
        vec![("sec-fetch-site", "same-site"), ("origin", world.base.as_str())],
        vec![("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "document")],
    ] {
        for (method, path) in [(Method::GET, "/v1/sandboxes"), (Method::POST, "/v1/sandboxes")] {
            let request = browser.bare(method, path);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            world.send(request).await.refused(403, "forbidden");
        }
        let request = browser.bare(Method::DELETE, "/v1/console/session");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        world.send(request).await.refused(403, "forbidden");
    }
    browser.send(Method::GET, "/v1/sandboxes").await.expect(200);
    // Another site cannot sign a user in, either.
    let request = world.http.post(format!("{}/v1/console/session", world.base));
    let request = request.header("origin", "https://evil.example").json(&json!({"api_key": world.token}));
    world.send(request).await.refused(403, "forbidden");
}

#[tokio::test]
async fn sign_in_requires_a_valid_key_and_a_secure_origin() {
    let world = World::start().await;
    let url = format!("{}/v1/console/session", world.base);
    for bad in ["", "pds_00000000000000000000000000000000"] {
        let request = own(&world, world.http.post(&url)).json(&json!({ "api_key": bad }));
        world.send(request).await.refused(401, "unauthorized");
    }
    world.send(own(&world, world.http.post(&url)).json(&json!({}))).await.refused(400, "bad_request");
    let plain = world.http.post(&url).header("host", "panda.example.com");
    let plain = plain.header("origin", "http://panda.example.com").json(&json!({"api_key": world.token}));
    let refused = world.send(plain).await.refused(400, "bad_request");
    assert!(refused["error"].as_str().unwrap().contains("HTTPS"), "{refused}");
}

#[tokio::test]
async fn sessions_end_with_their_key_and_can_be_revoked() {
    let mut world = World::start().await;
    let made = world.post("/v1/me/tokens", json!({"scope": "read"})).await.expect(201);
    let (key, prefix) =
        (made["token"].as_str().unwrap().to_owned(), made["prefix"].as_str().unwrap().to_owned());
    {
        let reader = Browser::sign_in(&world, &key).await;
        reader.send(Method::GET, "/v1/sandboxes").await.expect(200);
        reader.send(Method::POST, "/v1/sandboxes").await.refused(403, "forbidden");
        reader.send(Method::GET, "/v1/console/sessions").await.refused(403, "forbidden");
        world.delete(&format!("/v1/me/tokens/{prefix}")).await.expect(204);
        reader.send(Method::GET, "/v1/sandboxes").await.refused(401, "unauthorized");
    }
    let cookie = Browser::sign_in(&world, &world.token).await.cookie;
    world.restart().await;
    let browser = Browser { world: &world, cookie };
    let listed = browser.send(Method::GET, "/v1/console/sessions").await.expect(200);
    assert!(!listed.to_string().contains(browser.cookie.split_once('=').unwrap().1));
    let id = listed["items"][0]["id"].as_str().unwrap();
    assert_eq!(listed["items"][0]["token_prefix"], world.token[..12]);
    world.delete(&format!("/v1/console/sessions/{id}")).await.expect(204);
    browser.send(Method::GET, "/v1/me").await.refused(401, "unauthorized");
    world.delete(&format!("/v1/console/sessions/{id}")).await.refused(404, "not_found");
}

#[tokio::test]
async fn the_console_is_served_as_html_and_api_paths_stay_json() {
    let world = World::start().await;
    let answer = world.send(world.http.get(format!("{}/console/sandboxes/x", world.base))).await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("script-src 'self';") && policy.contains("default-src 'none'"), "{policy}");
    world.get("/v1/nothing").await.refused(404, "not_found");
    world.get("/nothing").await.refused(404, "not_found");
    let asset = world.http.get(format!("{}/console/assets/gone.js", world.base));
    assert_eq!(world.send(asset).await.status, 404);
}

#[tokio::test]
async fn events_of_all_sandboxes_are_followed_and_resumed() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let first = world.create().await;
    let page = world.get("/v1/events?tail=50").await.expect(200);
    let seen = page["events"].as_array().unwrap();
    assert!(seen.iter().all(|event| event["sandbox_id"] == first.as_str()), "{page}");
    let last = seen.last().unwrap()["id"].as_i64().unwrap();
    let request = world.request(Method::GET, "/v1/events?follow=1").header("last-event-id", last.to_string());
    let mut stream = request.send().await.unwrap();
    let (second, third) = (world.create().await, world.create().await);
    let mut text = String::new();
    let both = async {
        while !(text.contains(&second) && text.contains(&third)) {
            text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    assert!(!text.contains(&first), "{text}");
    let ids: Vec<i64> = text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.iter().all(|id| *id > last) && ids.is_sorted(), "{ids:?}");
    let bad = world.request(Method::GET, "/v1/events?follow=1").header("last-event-id", "x");
    world.send(bad).await.refused(400, "bad_request");
}

#[tokio::test]
async fn streams_close_when_their_session_ends() {
    let world = World::start().await;
    let (first, second) =
        (Browser::sign_in(&world, &world.token).await, Browser::sign_in(&world, &world.token).await);
    let follow = async |browser: &Browser<'_>| {
        let request = own(&world, browser.bare(Method::GET, "/v1/events?follow=1"));
        let stream = request.send().await.unwrap();
        assert_eq!(stream.status(), 200);
        stream
    };
    let (mut ending, mut staying) = (follow(&first).await, follow(&second).await);
    first.send(Method::DELETE, "/v1/console/session").await.expect(204);
    let ended = tokio::time::timeout(Duration::from_secs(5), ending.chunk()).await.unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let stays = tokio::time::timeout(Duration::from_millis(200), staying.chunk()).await;
    assert!(stays.is_err(), "{stays:?}");
}
