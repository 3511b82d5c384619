//! The generations of the join secret, changed while everything runs.

use http::StatusCode;
use jiff::Timestamp;
use pandastack_control::{Control, ServeError};
use pandastack_types::agent_api::internal;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::secret_ring::SecretRing;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::SECRET;
use crate::harness::World;

/// A request about the secret, as `pandastack secrets` makes it.
async fn ask(world: &World, method: Method, key: &LinkKey) -> (u16, Value) {
    let now = Timestamp::now().as_second();
    let name = "operator".parse().unwrap();
    let signature = key.sign(Direction::AgentToControl, &name, method.as_str(), internal::SECRETS, now);
    let client = pandastack_http::builder_for("unix:").unix_socket(world.internal_socket()).build().unwrap();
    let request = client.request(method, format!("http://control{}", internal::SECRETS));
    let answer = request.header(LINK_HEADER, signature).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn opens(world: &World, target: &Value) -> bool {
    let url = format!("{}{}", world.base, target.as_str().unwrap());
    world.http.get(url).send().await.unwrap().status() != StatusCode::UNAUTHORIZED
}

#[tokio::test]
async fn both_secrets_are_accepted_during_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("link-secret");
    let mut ring = SecretRing::new(&SECRET).unwrap();
    let first = LinkKey::from(ring.clone());
    std::fs::write(&file, ring.to_text()).unwrap();
    let mut world = World::start_with(|config| config.secret_file = Some(file.clone())).await;
    let agent = world.agent("a", 8192).await;
    let id = world.create().await;
    let sign = format!("/v1/sandboxes/{id}/fs/sign");
    let signed = async || world.post(&sign, json!({"path": "/f"})).await.expect(200)["target"].clone();
    let token = async || {
        let request = world.http.get(format!("{}/sandboxes/{id}", world.base));
        world.send(request.header("x-api-key", &world.token)).await.expect(200)["envdAccessToken"].clone()
    };
    let token_opens = async |token: &Value| {
        let request = world.http.get(format!("{}/files?path=/f", world.base));
        let named = request.header("e2b-sandbox-id", &id).header("e2b-sandbox-port", "49983");
        world.send(named.header("x-access-token", token.as_str().unwrap())).await.status != 401
    };
    let reports = async |key: &LinkKey| agent.send_raw(&agent.report_now(), key).await.0 == StatusCode::OK;
    world
        .post(
            "/v1/apps",
            json!({"name": "shop", "git_url": "https://git.test/a/b.git", "git_token": "s3cret"}),
        )
        .await
        .expect(201);
    let (old_url, old_token) = (signed().await, token().await);
    assert_eq!(ask(&world, Method::GET, &first).await.1["rows_sealed_with"], 1);

    ring.stage(&[8; 32]).unwrap();
    ring.activate();
    std::fs::write(&file, ring.to_text()).unwrap();
    let (status, answer) = ask(&world, Method::POST, &first).await;
    assert_eq!((status, &answer["rows_sealed_with"]), (200, &json!(2)), "{answer}");
    assert!(answer["rows_sealed"].as_u64().is_some_and(|rows| rows > 0), "{answer}");
    assert!(!answer.to_string().contains("08080808"), "no secret is shown: {answer}");
    let (new_url, new_token) = (signed().await, token().await);
    assert_ne!((&old_url, &old_token), (&new_url, &new_token));
    assert!(opens(&world, &old_url).await && opens(&world, &new_url).await, "signed URLs of both");
    assert!(token_opens(&old_token).await && token_opens(&new_token).await, "access tokens of both");
    let both = LinkKey::from(ring.clone());
    assert!(reports(&first).await && reports(&both).await, "links of both");
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["status"], "running");
    world.get("/v1/apps/shop").await.expect(200);

    ring.finish().unwrap();
    std::fs::write(&file, ring.to_text()).unwrap();
    // Agents follow the file.
    agent.link.replace(ring.clone());
    assert_eq!(ask(&world, Method::POST, &both).await.0, 200);
    assert!(opens(&world, &new_url).await, "signed URLs of the current secret after the overlap");
    assert!(!opens(&world, &old_url).await, "signed URLs of the old secret after the overlap");
    assert!(
        !token_opens(&old_token).await && token_opens(&new_token).await,
        "access tokens after the overlap"
    );
    assert!(!reports(&first).await && reports(&LinkKey::from(ring.clone())).await, "links after the overlap");
    assert_eq!(ask(&world, Method::GET, &first).await.0, 401);
    assert_eq!(world.ids().await, [id.as_str()]);

    // A copy of the file from before the rotation does not open the rows, and is refused.
    world.stop().await;
    let mut config = world.config().clone();
    config.link_key = first;
    let refused = Control::bind(config).await.err().unwrap();
    assert!(matches!(refused, ServeError::SecretChanged { .. }), "{refused}");
    world.start_again().await;
    world.get("/v1/apps/shop").await.expect(200);
}

#[tokio::test]
async fn a_foreign_secret_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("link-secret");
    let world = World::start_with(|config| config.secret_file = Some(file.clone())).await;
    let key = LinkKey::new(&SECRET).unwrap();
    for text in [SecretRing::new(&[9; 32]).unwrap().to_text(), "short".to_owned()] {
        std::fs::write(&file, text).unwrap();
        let (status, answer) = ask(&world, Method::POST, &key).await;
        assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    }
    assert_eq!(ask(&world, Method::GET, &key).await.1["generations"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&world, Method::POST, &LinkKey::new(&[9; 32]).unwrap()).await.0, 401);
}
