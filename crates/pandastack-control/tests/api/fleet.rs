//! Hosts that join, over real TLS.

use std::time::Duration;

use pandastack_fleet::{Control, CredentialFile, Credentials, FleetError, HostTls, JoinToken, keep_current};
use pandastack_types::HostId;
use pandastack_types::agent_api::{HostReport, MigrationOffer};
use pandastack_types::host_identity::HostRole;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fake_agent::{FakeAgent, SECRET};
use crate::harness::{PATIENCE, World, eventually};

async fn world() -> World {
    World::start_with(|config| config.internal_listen = Some("127.0.0.1:0".parse().unwrap())).await
}

fn host(id: &str) -> HostId {
    id.parse().unwrap()
}

impl World {
    fn hosts_url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.hosts_address.unwrap())
    }

    async fn join_token(&self, request: Value) -> JoinToken {
        let made = self.post("/v1/hosts/tokens", request).await.expect(201);
        made["token"].as_str().unwrap().parse().unwrap()
    }

    async fn join(&self, token: &JoinToken, role: HostRole, id: &str) -> Result<HostTls, FleetError> {
        let control = Control::parse(&self.hosts_url("https"));
        let credentials = pandastack_fleet::join(&control, token, role, &host(id)).await?;
        HostTls::new(credentials)
    }

    async fn agent_that_joined(&self, id: &str) -> HostTls {
        let token = self.join_token(json!({})).await;
        self.join(&token, HostRole::Agent, id).await.unwrap()
    }

    /// Paths, statuses and credentials of the audit log, newest last.
    async fn audited(&self, route: &str) -> Vec<(u64, String)> {
        let log = self.get("/v1/audit?limit=100").await.expect(200);
        let items = log["entries"].as_array().unwrap().iter().filter(|entry| entry["route"] == route);
        let entry = |entry: &Value| {
            (entry["status"].as_u64().unwrap(), entry["token_prefix"].as_str().unwrap().to_owned())
        };
        items.map(entry).collect()
    }
}

fn client(tls: &HostTls) -> reqwest::Client {
    let builder = reqwest::Client::builder().http1_only().no_proxy().timeout(PATIENCE);
    builder.tls_backend_preconfigured(tls.to_control().unwrap()).build().unwrap()
}

/// A report of a host that can be reached over TLS at an address.
async fn report_of(world: &World, id: &str) -> HostReport {
    let fake =
        FakeAgent::start(world.directory(), HostId::random().as_str(), 8192, world.internal_socket()).await;
    HostReport { host: host(id), address: "https://127.0.0.1:9".to_owned(), ..fake.report_now() }
}

async fn send(
    world: &World,
    client: &reqwest::Client,
    path: &str,
    report: &HostReport,
) -> reqwest::Result<u16> {
    let url = format!("{}{path}", world.hosts_url("https"));
    Ok(client.post(url).json(report).send().await?.status().as_u16())
}

fn reason(refused: Result<HostTls, FleetError>) -> String {
    match refused {
        Err(FleetError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_host_joins_with_a_token_and_reports_for_itself_only() {
    let world = world().await;
    let tls = world.agent_that_joined("host-a").await;
    world.agent_that_joined("host-b").await;
    let (client, report) = (client(&tls), report_of(&world, "host-a").await);
    let path = "/internal/v1/hosts/host-a/report";
    assert_eq!(send(&world, &client, path, &report).await.unwrap(), 200);
    let hosts = world.get("/v1/hosts").await.expect(200);
    let of =
        |id: &str| hosts["items"].as_array().unwrap().iter().find(|host| host["id"] == id).unwrap().clone();
    assert_eq!((&of("host-a")["link"], &of("host-a")["reachable"]), (&json!("certificate"), &json!(true)));
    assert!(of("host-a")["certificate_expires_at"].is_string());

    // Its key is of no use for another host, whatever the path or the body say.
    let other = "/internal/v1/hosts/host-b/report";
    let of_other = HostReport { host: host("host-b"), ..report.clone() };
    assert_eq!(send(&world, &client, other, &of_other).await.unwrap(), 403);
    assert_eq!(send(&world, &client, other, &report).await.unwrap(), 403);
    assert_eq!(send(&world, &client, path, &of_other).await.unwrap(), 403);
    eventually("it is audited", || async {
        world.audited(other).await == vec![(403, "host-a".to_owned()); 2]
    })
    .await;
    // An agent is no edge, and no control server.
    for (path, status) in
        [("/internal/v1/routes", 403), ("/internal/v1/in-flight", 403), ("/internal/v1/secrets", 403)]
    {
        let answer = client.get(format!("{}{path}", world.hosts_url("https"))).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path}");
    }
    // The way back is encrypted, too.
    let plain = HostReport { address: "http://127.0.0.1:9".to_owned(), ..report };
    assert_eq!(send(&world, &client, path, &plain).await.unwrap(), 400);
}

#[tokio::test]
async fn a_join_token_is_used_once_and_expires() {
    let world = world().await;
    let token = world.join_token(json!({})).await;
    let id = token.id().to_owned();
    // Two hosts at the same time: one of them joins.
    let (a, b) = tokio::join!(
        world.join(&token, HostRole::Agent, "host-a"),
        world.join(&token, HostRole::Agent, "host-b")
    );
    assert_eq!(u8::from(a.is_ok()) + u8::from(b.is_ok()), 1);
    let again = reason(world.join(&token, HostRole::Agent, "host-c").await);
    assert!(again.contains("was used at"), "{again}");
    eventually("uses are audited", || async {
        let mut found = world.audited("/internal/v1/join").await;
        found.sort();
        found.len() == 3 && found[0] == (200, id.clone()) && found.iter().all(|(_, by)| *by == id)
    })
    .await;

    let short = world.join_token(json!({"ttl_seconds": 1})).await;
    let expired = || async {
        let refused = world.join(&short, HostRole::Edge, "edge-a").await;
        reason(refused).contains("expired")
    };
    // The role is refused until then, so the token is not used up.
    eventually("it expires", expired).await;
    let stranger = JoinToken::random(short.authority()).unwrap();
    assert!(reason(world.join(&stranger, HostRole::Agent, "host-d").await).contains("not valid"));
    // Nobody else answers for control.
    let elsewhere = format!("{}_{}", short.presented(), "0".repeat(64)).parse().unwrap();
    let refused = world.join(&elsewhere, HostRole::Agent, "host-d").await;
    assert!(matches!(refused, Err(FleetError::Unreachable { .. })), "{refused:?}");
    for wrong in [json!({"ttl_seconds": 0}), json!({"ttl_seconds": 86_401}), json!({"role": "control"})] {
        world.post("/v1/hosts/tokens", wrong).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn a_known_host_needs_a_token_of_its_own() {
    let world = world().await;
    world.agent_that_joined("host-a").await;
    let any = world.join_token(json!({})).await;
    let taken = reason(world.join(&any, HostRole::Agent, "host-a").await);
    assert!(taken.contains("--host host-a"), "{taken}");
    let bound = world.join_token(json!({"host": "host-a"})).await;
    assert!(reason(world.join(&bound, HostRole::Agent, "host-b").await).contains("token of its own"));
    let again = world.join(&bound, HostRole::Agent, "host-a").await.unwrap();
    assert_eq!(again.credentials().identity().membership, 2);
    // What was refused is not used up.
    world.join(&any, HostRole::Agent, "host-b").await.unwrap();
}

#[tokio::test]
async fn a_removed_host_is_refused_at_once() {
    let world = world().await;
    let tls = world.agent_that_joined("host-a").await;
    let (client, report) = (client(&tls), report_of(&world, "host-a").await);
    let path = "/internal/v1/hosts/host-a/report";
    assert_eq!(send(&world, &client, path, &report).await.unwrap(), 200);
    world.delete("/v1/hosts/host-a").await.expect(204);
    // Over the connection that it has, and over a new one.
    assert!(send(&world, &client, path, &report).await.is_err());
    assert!(send(&world, &self::client(&tls), path, &report).await.is_err());
    let hosts = world.get("/v1/hosts").await.expect(200);
    assert_eq!(
        (&hosts["items"][0]["link"], &hosts["items"][0]["reachable"]),
        (&json!("removed"), &json!(false))
    );
    // Neither does the join secret bring it back, nor its certificate once the id joins again.
    let fake = FakeAgent::start(world.directory(), "host-a", 8192, world.internal_socket()).await;
    let (status, _) = fake.send_raw(&fake.report_now(), &LinkKey::new(&SECRET).unwrap()).await;
    assert_eq!(status, 401);
    let bound = world.join_token(json!({"host": "host-a"})).await;
    let new = world.join(&bound, HostRole::Agent, "host-a").await.unwrap();
    assert!(send(&world, &self::client(&tls), path, &report).await.is_err());
    assert_eq!(send(&world, &self::client(&new), path, &report).await.unwrap(), 200);
    world.delete("/v1/hosts/nobody").await.refused(404, "not_found");
}

#[tokio::test]
async fn certificates_are_renewed_before_their_end() {
    let world = World::start_with(|config| {
        config.internal_listen = Some("127.0.0.1:0".parse().unwrap());
        config.host_certificate_life = Duration::from_secs(3);
    })
    .await;
    let tls = world.agent_that_joined("host-a").await;
    let (first, dir) = (tls.credentials(), tempfile::tempdir().unwrap());
    let (file, control) = (CredentialFile::of(dir.path()), Control::parse(&world.hosts_url("https")));
    let (stop, mut replaced) = (CancellationToken::new(), tls.replaced());
    let keeper = {
        let (tls, file, stop) = (tls.clone(), file.clone(), stop.clone());
        tokio::spawn(async move { keep_current(&tls, &control, &file, &stop).await })
    };
    let report = report_of(&world, "host-a").await;
    let path = "/internal/v1/hosts/host-a/report";
    // Two renewals outlive the first certificate.
    for _ in 0..2 {
        tokio::time::timeout(PATIENCE, replaced.changed()).await.unwrap().unwrap();
        assert_eq!(send(&world, &client(&tls), path, &report).await.unwrap(), 200);
    }
    assert!(tls.credentials().expires_at() > first.expires_at());
    assert_eq!(file.read().unwrap().unwrap().identity(), first.identity());
    let old = HostTls::new(first).unwrap();
    let ended = || async { send(&world, &client(&old), path, &report).await.is_err() };
    eventually("the first certificate has ended", ended).await;
    stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn edges_may_read_routes_and_nothing_else() {
    let world = world().await;
    let token = world.join_token(json!({"role": "edge"})).await;
    let edge = client(&world.join(&token, HostRole::Edge, "edge-a").await.unwrap());
    let agent = world.agent("host-b", 8192).await;
    let id = world.create().await;
    agent.report().await;
    let url = |path: String| format!("{}{path}", world.hosts_url("https"));
    let route: Value =
        edge.get(url(format!("/internal/v1/routes/{id}"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(route["host"], "host-b");
    assert!(route["preview_key"].is_array(), "the edge has no secret to derive it from: {route}");
    let report = report_of(&world, "edge-a").await;
    assert_eq!(send(&world, &edge, "/internal/v1/hosts/edge-a/report", &report).await.unwrap(), 403);
    assert!(agent.report().await.edges.contains_key(&host("edge-a")), "agents learn of it");
    world.delete("/v1/hosts/edge-a").await.expect(204);
    assert!(agent.report().await.edges.is_empty());
    assert!(edge.get(url(format!("/internal/v1/routes/{id}"))).send().await.is_err());
}

/// A report with the join secret over plain TCP, as from a host of before certificates.
async fn report_with_secret(world: &World, id: &str) -> (u16, Value) {
    let path = format!("/internal/v1/hosts/{id}/report");
    let link = LinkKey::new(&SECRET).unwrap();
    let now = jiff::Timestamp::now().as_second();
    let signature = link.sign(Direction::AgentToControl, &host(id), "POST", &path, now);
    let report = HostReport { address: "http://127.0.0.1:9".to_owned(), ..report_of(world, id).await };
    let request = world.http.post(format!("{}{path}", world.hosts_url("http"))).json(&report);
    let answer = request.header(LINK_HEADER, signature).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// A world with a database from before certificates.
async fn older_world() -> World {
    let mut world = world().await;
    let _local = world.agent("local", 8192).await;
    world.stop().await;
    world.execute("DELETE FROM installation WHERE name = ?", &["shared_secret"]).await;
    world.start_again().await;
    world
}

#[tokio::test]
async fn the_shared_secret_is_for_installations_that_had_it() {
    let new = world().await;
    assert_eq!(report_with_secret(&new, "host-a").await.0, 401, "a new installation never accepts it");
    let world = older_world().await;
    assert_eq!(report_with_secret(&world, "host-a").await.0, 200);
    let bound = world.join_token(json!({"host": "host-a"})).await;
    world.join(&bound, HostRole::Agent, "host-a").await.unwrap();
    assert_eq!(report_with_secret(&world, "host-a").await.0, 401, "it has a certificate now");
}

#[tokio::test]
async fn one_command_moves_hosts_to_certificates() {
    let world = older_world().await;
    let (secret, control) = (LinkKey::new(&SECRET).unwrap(), Control::parse(&world.hosts_url("http")));
    let authority = world.join_token(json!({})).await.authority();
    let join = async |secret: &LinkKey, id: &str| {
        pandastack_fleet::join_with_secret(&control, authority, secret, &host(id))
            .await
            .and_then(HostTls::new)
    };
    for id in ["host-a", "host-b"] {
        let (status, answer) = report_with_secret(&world, id).await;
        assert_eq!(
            (status, &answer["migrate"]),
            (200, &Value::Null),
            "nothing is offered before the command"
        );
    }
    assert!(reason(join(&secret, "host-a").await).contains("not accepted"));
    let migrate = async |request: Value| world.post("/v1/hosts/migrate", request).await.expect(200);
    let expect = json!({"finished": false, "pending": ["host-a", "host-b"]});
    assert_eq!(migrate(json!({"finish": true})).await, expect, "hosts still need the secret");

    let offer = report_with_secret(&world, "host-a").await.1["migrate"].clone();
    let offer: MigrationOffer = serde_json::from_value(offer).unwrap();
    assert!(offer.is_proven(&secret) && offer.authority == authority.to_string());
    let forged = MigrationOffer { authority: "0".repeat(64), ..offer };
    assert!(!forged.is_proven(&secret));
    assert!(join(&LinkKey::new(&[1; 32]).unwrap(), "host-a").await.is_err());
    assert!(reason(join(&secret, "local").await).contains("does not report"), "it is on this machine");
    assert!(join(&secret, "host-c").await.is_err(), "it is not known");
    let tls = join(&secret, "host-a").await.unwrap();
    assert!(
        reason(join(&secret, "host-a").await).contains("does not report with the join secret") || {
            reason(join(&secret, "host-a").await).contains("certificate already")
        }
    );
    let path = "/internal/v1/hosts/host-a/report";
    let report = report_of(&world, "host-a").await;
    assert_eq!(send(&world, &client(&tls), path, &report).await.unwrap(), 200);
    assert_eq!(report_with_secret(&world, "host-a").await.0, 401, "the secret is refused for it");

    assert_eq!(migrate(json!({"finish": true})).await, json!({"finished": false, "pending": ["host-b"]}));
    let finished = migrate(json!({"finish": true, "force": true})).await;
    assert_eq!(finished["finished"], true);
    assert_eq!(report_with_secret(&world, "host-b").await.0, 401);
    assert_eq!(send(&world, &client(&tls), path, &report).await.unwrap(), 200);
}

#[tokio::test]
async fn the_authority_is_sealed_and_outlives_a_restart() {
    let mut world = world().await;
    let tls = world.agent_that_joined("host-a").await;
    let stored = world.text("SELECT spec FROM host_authority").await;
    assert!(stored.contains("sealed") && !stored.contains("PRIVATE KEY"), "{stored}");
    let hash = world.count("SELECT length(hash) FROM host_tokens").await;
    assert_eq!(hash, 32);
    world.restart().await;
    let (client, report) = (client(&tls), report_of(&world, "host-a").await);
    let sent = send(&world, &client, "/internal/v1/hosts/host-a/report", &report).await;
    assert_eq!(sent.unwrap(), 200);
    let credentials: Credentials = tls.credentials();
    assert_eq!(credentials.authority(), world.join_token(json!({})).await.authority());
}

#[tokio::test]
async fn a_server_without_other_hosts_makes_no_tokens() {
    let world = World::start().await;
    world.post("/v1/hosts/tokens", json!({})).await.refused(409, "conflict");
}
