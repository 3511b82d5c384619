//! People sign in with a browser or a device, get the role of their membership, and lose it with that.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, World};
use crate::login_provider::{ATTEMPT_COOKIE, Browser, CONSOLE_COOKIE, LoginProvider, PUBLIC_URL};
use crate::tenants::send;

fn ada(groups: &[&str]) -> Value {
    json!({"email": "Ada@example.com", "email_verified": true, "name": "Ada", "groups": groups})
}

async fn world(provider: &LoginProvider, groups: &[&str]) -> World {
    World::start_with(|config| provider.configure(config, groups)).await
}

async fn add(world: &World, role: &str) -> String {
    let body = json!({"email": "ada@Example.com", "role": role});
    let member = world.post("/v1/members", body).await.expect(201);
    member["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn role_changes_of_a_member_apply_immediately() {
    let Some(provider) = LoginProvider::start().await else { return };
    provider.describe("ada", ada(&[])).await;
    let world = world(&provider, &[]).await;
    let offered = world.send(world.http.get(format!("{}/v1/login", world.base))).await.expect(200);
    let url = format!("{PUBLIC_URL}/v1/login/start");
    assert_eq!(offered, json!({"provider": {"name": "Example", "url": url}}));
    // A person who was not added has no access.
    let mut browser = Browser::new(&world);
    let refused = browser.sign_in("ada").await.refused(403, "forbidden");
    assert!(refused["error"].as_str().unwrap().contains("ada@example.com"), "{refused}");
    assert!(browser.own.is_empty(), "the attempt is over, and there is no session");

    let id = add(&world, "developer").await;
    let twice = world.post("/v1/members", json!({"email": "ada@example.com"})).await;
    twice.refused(409, "conflict");
    let answer = browser.sign_in("ada").await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (303, "/console/"));
    let cookies: Vec<_> =
        answer.headers.get_all("set-cookie").iter().map(|line| line.to_str().unwrap()).collect();
    let session = cookies.iter().find(|line| line.starts_with(CONSOLE_COOKIE)).unwrap();
    for part in ["Path=/", "Secure", "HttpOnly", "SameSite=Strict"] {
        assert!(session.contains(part), "{session}");
    }
    let me = browser.call(Method::GET, "/v1/me", json!({})).await.expect(200);
    assert_eq!((&me["token_role"], &me["token_label"]), (&json!("developer"), &json!("ada@example.com")));
    assert_eq!(me["auth_method"], "session");
    // The audit log attributes her calls to her.
    browser.call(Method::DELETE, "/v1/volumes/none", json!({})).await.refused(404, "not_found");
    crate::harness::eventually("an entry in the audit log", || async {
        let log = world.get("/v1/audit").await.expect(200);
        let is_hers =
            |entry: &Value| entry["path"] == "/v1/volumes/none" && entry["token_label"] == "ada@example.com";
        log["entries"].as_array().unwrap().iter().any(is_hers)
    })
    .await;
    let listed = world.get("/v1/members").await.expect(200)["items"][0].clone();
    assert_eq!(
        (&listed["id"], &listed["subject"], &listed["name"]),
        (&json!(id), &json!("ada"), &json!("Ada"))
    );
    let sessions = world.get("/v1/members/sessions").await.expect(200);
    let session = &sessions["items"][0];
    assert_eq!((&session["member"], &session["client"]), (&json!(id), &json!("Test/1")));
    let prefix = session["id"].as_str().unwrap();
    let keys = world.get("/v1/me/tokens").await.expect(200);
    assert!(!keys.to_string().contains(prefix), "a session is no key: {keys}");
    for path in [format!("/v1/me/tokens/{prefix}"), format!("/v1/me/tokens/{prefix}/rotate")] {
        let method = if path.ends_with("rotate") { Method::POST } else { Method::DELETE };
        send(&world, &world.token, method, &path, json!({})).await.refused(404, "not_found");
    }
    // A changed role applies at once.
    let member = format!("/v1/members/{id}");
    send(&world, &world.token, Method::PATCH, &member, json!({"role": "viewer"})).await.expect(200);
    browser.call(Method::DELETE, "/v1/volumes/none", json!({})).await.refused(403, "forbidden");
    // So does the revocation of a session, and the removal of a member.
    world.delete(&format!("/v1/members/sessions/{prefix}")).await.expect(204);
    browser.call(Method::GET, "/v1/me", json!({})).await.refused(401, "unauthorized");
    assert_eq!(browser.sign_in("ada").await.status, 303);
    browser.call(Method::GET, "/v1/me", json!({})).await.expect(200);
    world.delete(&member).await.expect(204);
    browser.call(Method::GET, "/v1/me", json!({})).await.refused(401, "unauthorized");
    world.delete(&member).await.refused(404, "not_found");
    browser.sign_in("ada").await.refused(403, "forbidden");
    // Signing out ends the sign-in, not only the cookie.
    add(&world, "owner").await;
    browser.sign_in("ada").await;
    browser.call(Method::DELETE, "/v1/console/session", json!({})).await.expect(204);
    assert_eq!(world.get("/v1/members/sessions").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_sign_in_attempt_is_single_use_per_browser() {
    let Some(provider) = LoginProvider::start().await else { return };
    provider.describe("ada", ada(&[])).await;
    let world = world(&provider, &[]).await;
    add(&world, "viewer").await;
    let mut browser = Browser::new(&world);
    let refused = |answer: Answer, why: &str| {
        let session = format!("{CONSOLE_COOKIE}=");
        let mut cookies = answer.headers.get_all("set-cookie").iter();
        assert!(!cookies.any(|line| line.to_str().unwrap().starts_with(&session)), "{why}");
        let error = answer.refused(401, "unauthorized");
        assert!(error["error"].as_str().unwrap().contains(why), "{why}: {error}");
    };
    // A response to another browser's attempt: following a link must not sign a person in as
    // someone else.
    let url = browser.begin().await;
    let callback = browser.authorize(&url, "ada").await;
    let mut other = Browser::new(&world);
    refused(other.come_back(&callback).await, "did not start in this browser");
    other.begin().await;
    refused(other.come_back(&callback).await, "different sign-in");
    let (start, rest) = callback.split_once("state=").unwrap();
    let changed = format!("{start}state=0{}", &rest[1..]);
    let attempt = browser.own[ATTEMPT_COOKIE].clone();
    let again = |browser: &mut Browser<'_>| browser.own.insert(ATTEMPT_COOKIE.to_owned(), attempt.clone());
    if changed != callback {
        refused(browser.come_back(&changed).await, "different sign-in");
    }
    again(&mut browser);
    let foreign = callback.replace("&iss=", "&iss=x");
    assert_ne!(foreign, callback);
    refused(browser.come_back(&foreign).await, "different provider");
    again(&mut browser);
    let state = callback.split("state=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let declined = format!("{PUBLIC_URL}/v1/login/callback?error=access_denied&state={state}");
    refused(browser.come_back(&declined).await, "access_denied");
    again(&mut browser);
    assert_eq!(browser.come_back(&callback).await.status, 303);
    // The same code once more, with everything else in place.
    again(&mut browser);
    refused(browser.come_back(&callback).await, "used before");
    // A token that was made for another attempt, under the state of this one.
    let url = browser.begin().await;
    let (start, rest) = url.split_once("nonce=").unwrap();
    let swapped = format!("{start}nonce=0000{}", &rest[4..]);
    let callback = browser.authorize(&swapped, "ada").await;
    refused(browser.come_back(&callback).await, "`nonce` does not match");
    // A code of a request with another challenge.
    let url = browser.begin().await;
    let (start, rest) = url.split_once("code_challenge=").unwrap();
    let swapped = format!("{start}code_challenge=AAAA{}", &rest[4..]);
    let callback = browser.authorize(&swapped, "ada").await;
    refused(browser.come_back(&callback).await, "invalid");
}

#[tokio::test]
async fn groups_grant_and_revoke_roles() {
    let Some(provider) = LoginProvider::start().await else { return };
    let mapping = ["eng=default:viewer", "eng=none:owner", "ops=default:operator"];
    let world = world(&provider, &mapping).await;
    let mut browser = Browser::new(&world);
    provider.describe("ada", ada(&["eng", "ops"])).await;
    assert_eq!(browser.sign_in("ada").await.status, 303);
    let me = browser.call(Method::GET, "/v1/me", json!({})).await.expect(200);
    assert_eq!((&me["token_role"], &me["operator"]), (&json!("owner"), &json!(true)));
    let member = world.get("/v1/members").await.expect(200)["items"][0].clone();
    assert_eq!((&member["from_groups"], &member["operator"]), (&json!(true), &json!(true)));
    let path = format!("/v1/members/{}", member["id"].as_str().unwrap());
    let fixed = send(&world, &world.token, Method::PATCH, &path, json!({"role": "viewer"})).await;
    fixed.refused(409, "conflict");
    // The next sign-in has fewer groups: other sessions of the person lose the same rights.
    provider.describe("ada", ada(&["eng"])).await;
    assert_eq!(Browser::new(&world).sign_in("ada").await.status, 303);
    let me = browser.call(Method::GET, "/v1/me", json!({})).await.expect(200);
    assert_eq!((&me["token_role"], &me["operator"]), (&json!("viewer"), &json!(false)));
    provider.describe("ada", ada(&["sales"])).await;
    Browser::new(&world).sign_in("ada").await.refused(403, "forbidden");
    browser.call(Method::GET, "/v1/me", json!({})).await.refused(401, "unauthorized");
    assert_eq!(world.get("/v1/members").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn only_verified_emails_of_allowed_domains_count() {
    let Some(provider) = LoginProvider::start().await else { return };
    let world = World::start_with(|config| {
        provider.configure(config, &["eng=default:viewer"]);
        config.login.as_mut().unwrap().email_domains = vec!["example.com".to_owned()];
    })
    .await;
    add(&world, "owner").await;
    for (email, verified) in
        [("ada@example.com", false), ("ada@evil.example", true), ("a@x.example.com", true)]
    {
        let claims = json!({"email": email, "email_verified": verified, "groups": ["eng"]});
        provider.describe("eve", claims).await;
        Browser::new(&world).sign_in("eve").await.refused(403, "forbidden");
    }
    // Without the rule about domains, groups count, and the address still does not.
    let open = self::world(&provider, &["eng=default:viewer"]).await;
    add(&open, "owner").await;
    provider
        .describe("eve", json!({"email": "ada@example.com", "email_verified": false, "groups": ["eng"]}))
        .await;
    let mut browser = Browser::new(&open);
    assert_eq!(browser.sign_in("eve").await.status, 303);
    let me = browser.call(Method::GET, "/v1/me", json!({})).await.expect(200);
    assert_eq!((&me["token_role"], &me["token_label"]), (&json!("viewer"), &json!("eve")));
}

#[tokio::test]
async fn a_device_signs_in_and_out() {
    let Some(provider) = LoginProvider::start().await else { return };
    provider.describe("ada", ada(&[])).await;
    let world = world(&provider, &[]).await;
    add(&world, "developer").await;
    let open = async |path: &str, body: Value| {
        let request = world.http.post(format!("{}{path}", world.base)).json(&body);
        world.send(request).await
    };
    let device = open("/v1/login/device", json!({})).await.expect(200);
    let finish = json!({"device_code": device["device_code"], "client": "laptop"});
    let pending = open("/v1/login/token", finish.clone()).await.expect(200);
    assert_eq!(pending, json!({"status": "pending"}));
    let mut browser = Browser::new(&world);
    browser.confirm(device["verification_uri_complete"].as_str().unwrap(), "ada").await;
    let done = open("/v1/login/token", finish.clone()).await.expect(200);
    let (status, session) = (&done["status"], &done["session"]);
    assert_eq!((status, &session["role"]), (&json!("complete"), &json!("developer")));
    let token = session["token"].as_str().unwrap();
    let me = async |key: &str| send(&world, key, Method::GET, "/v1/me", json!({})).await;
    assert_eq!(me(token).await.expect(200)["token_label"], "ada@example.com");
    open("/v1/login/token", finish).await.refused(401, "unauthorized");
    let sessions = world.get("/v1/members/sessions").await.expect(200);
    assert_eq!(sessions["items"][0]["client"], "laptop");
    let sign_out = async |key: &str| send(&world, key, Method::DELETE, "/v1/login/session", json!({})).await;
    sign_out(&world.token).await.refused(409, "conflict");
    sign_out(token).await.expect(204);
    me(token).await.refused(401, "unauthorized");
    sign_out(token).await.refused(401, "unauthorized");
    // A session without a sign-out expires.
    let device = open("/v1/login/device", json!({})).await.expect(200);
    browser.confirm(device["verification_uri_complete"].as_str().unwrap(), "ada").await;
    let finish = json!({"device_code": device["device_code"], "workspace": "default"});
    let done = open("/v1/login/token", finish).await.expect(200);
    world.execute("UPDATE tokens SET expires_at_us = 1 WHERE member_id IS NOT NULL", &[]).await;
    me(done["session"]["token"].as_str().unwrap()).await.refused(401, "unauthorized");
    assert_eq!(world.get("/v1/members/sessions").await.expect(200)["items"], json!([]));
    open("/v1/login/token", json!({"device_code": "x"})).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn without_a_login_provider_only_api_keys_work() {
    let world = World::start().await;
    assert_eq!(world.get("/v1/login").await.expect(200), json!({}));
    for path in ["/v1/login/start", "/v1/login/callback?state=x&code=y"] {
        world.get(path).await.refused(501, "not_implemented");
    }
    for (path, body) in [("/v1/login/device", json!({})), ("/v1/login/token", json!({"device_code": "x"}))] {
        world.post(path, body).await.refused(501, "not_implemented");
    }
    world.post("/v1/members", json!({"email": "ada@example.com"})).await.refused(501, "not_implemented");
    assert_eq!(world.get("/v1/members").await.expect(200)["items"], json!([]));
    assert_eq!(world.get("/v1/me").await.expect(200)["auth_method"], "api_key");
}
