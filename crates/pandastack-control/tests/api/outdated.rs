use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pandastack_control::{AdvisoryFile, ControlConfig, OutdatedPolicy};
use pandastack_types::agent_api::{
    Components, EngineVersion, FrozenSandbox, FrozenSnapshot, FrozenTemplate, GuestVersion, HostFrozen,
    OutdatedVerdict,
};
use pandastack_types::api::OutdatedAction;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;
use crate::harness::{World, eventually};
use crate::tenants::{key, send};

fn components(kernel: &str, guest: &str) -> Components {
    Components {
        kernel: Some(kernel.to_owned()),
        guest: Some(GuestVersion { version: guest.to_owned(), build: format!("build-of-{guest}") }),
        engine: Some(EngineVersion { name: "fake".to_owned(), version: "1.0".to_owned() }),
    }
}

/// A world with a sleeping sandbox and a snapshot of an older guest program, a current sleeping
/// sandbox, and a running one.
struct Frozen {
    world: World,
    agent: FakeAgent,
    sleeper: String,
    snapshot: String,
}

impl Frozen {
    async fn start(change: impl FnOnce(&mut ControlConfig)) -> Self {
        let world = World::start_with(change).await;
        let agent = world.agent("host-a", 60_000).await;
        let (sleeper, current, running) = (world.create().await, world.create().await, world.create().await);
        let taken = world.post(&format!("/v1/sandboxes/{sleeper}/snapshots"), json!({})).await.expect(201);
        let snapshot = taken["id"].as_str().unwrap().to_owned();
        for id in [&sleeper, &current] {
            world.post(&format!("/v1/sandboxes/{id}/hibernate"), json!({})).await.expect(200);
        }
        let (today, older) = (components("6.1.0-37", "0.5.0"), components("6.1.0-37", "0.4.0"));
        let sandbox = |id: &String, components: &Components| FrozenSandbox {
            id: id.parse().unwrap(),
            components: components.clone(),
            verdict: None,
        };
        agent.lock().frozen = HostFrozen {
            // The host still lists a sandbox that runs by now; it must not count as sleeping.
            sandboxes: vec![sandbox(&sleeper, &older), sandbox(&current, &today), sandbox(&running, &older)],
            snapshots: vec![FrozenSnapshot {
                id: snapshot.parse().unwrap(),
                components: Components::default(),
                verdict: None,
            }],
            templates: vec![FrozenTemplate { name: "base".to_owned(), components: older }],
            current: today,
        };
        Self { world, agent, sleeper, snapshot }
    }

    async fn list(&self, query: &str) -> Value {
        self.world.get(&format!("/v1/outdated{query}")).await.expect(200)
    }

    fn verdict(&self) -> Option<OutdatedVerdict> {
        self.agent.lock().frozen.sandboxes[0].verdict.clone()
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn outdated_states_are_listed() {
    let frozen = Frozen::start(|_| {}).await;
    let list = frozen.list("").await;
    assert_eq!(ids(&list), [&frozen.sleeper, &frozen.snapshot], "{list}");
    assert_eq!(list["complete"], true);
    let sleeper = &list["items"][0];
    assert_eq!((&sleeper["kind"], &sleeper["action"]), (&json!("sandbox"), &json!("keep")));
    assert!(sleeper.get("host_id").is_none(), "tenants see no hosts: {sleeper}");
    assert_eq!(sleeper["components"].as_array().unwrap().len(), 1);
    assert_eq!(sleeper["components"][0]["component"], "guest");
    assert_eq!(sleeper["components"][0]["found"], "0.4.0 (build build-of)");
    let step = sleeper["next_step"].as_str().unwrap();
    assert!(step.starts_with("wake it, then drop its memory"), "{step}");
    let snapshot = &list["items"][1];
    assert_eq!(snapshot["components"].as_array().unwrap().len(), 3, "nothing is known of it: {snapshot}");
    assert!(snapshot["components"][0].get("found").is_none());

    let all = frozen.list("?all=true").await;
    assert_eq!(ids(&all), ["base", &frozen.sleeper, &frozen.snapshot]);
    assert_eq!(all["items"][1]["host_id"], "host-a");
    assert_eq!(all["items"][0]["next_step"], "nothing: the next create builds it again");
    assert!(!frozen.agent.has_seen("PUT", "/agent/v1/frozen/verdicts"), "the policy keeps them");

    frozen.agent.lock().is_down = true;
    let list = frozen.list("").await;
    assert_eq!((ids(&list).len(), &list["complete"]), (0, &json!(false)));
}

#[tokio::test]
async fn only_operators_see_outdated_states_of_all_workspaces() {
    let frozen = Frozen::start(|config| config.tenancy.allow_emulated = true).await;
    let world = &frozen.world;
    world.post("/v1/workspaces", json!({"id": "other"})).await.expect(201);
    let viewer = key(world, "other", json!({"role": "viewer"})).await;
    let own = send(world, &viewer, Method::GET, "/v1/outdated", json!({})).await.expect(200);
    assert_eq!(ids(&own).len(), 0, "{own}");
    send(world, &viewer, Method::GET, "/v1/outdated?all=true", json!({})).await.refused(403, "forbidden");
}

fn policy(action: OutdatedAction, grace_days: u32) -> impl FnOnce(&mut ControlConfig) {
    let check_every = Duration::from_millis(20);
    move |config| {
        config.outdated = OutdatedPolicy { action, grace_days, check_every, ..OutdatedPolicy::default() };
    }
}

#[tokio::test]
async fn owners_are_notified_before_the_policy_applies() {
    let frozen = Frozen::start(policy(OutdatedAction::Refuse, 7)).await;
    eventually("a verdict", || async { frozen.verdict().is_some() }).await;
    let verdict = frozen.verdict().unwrap();
    assert_eq!(verdict.from, verdict.reported_at + SignedDuration::from_hours(7 * 24));
    assert!(!verdict.is_due(Timestamp::now()) && verdict.is_due(verdict.from));
    assert!(verdict.reason.contains("outdated guest program 0.4.0"), "{}", verdict.reason);
    assert!(verdict.reason.contains("hibernate --disk-only"), "{}", verdict.reason);
    let events = frozen.world.get(&format!("/v1/sandboxes/{}/events", frozen.sleeper)).await.expect(200);
    let told: Vec<_> =
        events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "outdated").collect();
    // One event of the sandbox, one of its snapshot.
    assert_eq!(told.len(), 2, "{events}");
    assert!(told[0]["detail"].as_str().unwrap().contains("it cannot be used"), "{events}");
    let list = frozen.list("").await;
    assert_eq!(list["items"][0]["action"], "refuse");
    assert!(list["items"][0]["action_from"].is_string() && list["items"][0]["reported_at"].is_string());

    // It is current again, as after a cold restart: the verdict is removed, without another
    // notification.
    let today = frozen.agent.lock().frozen.current.clone();
    frozen.agent.lock().frozen.sandboxes[0].components = today;
    eventually("no verdict", || async { frozen.verdict().is_none() }).await;
    let kinds = frozen.world.kinds(&frozen.sleeper).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "outdated").count(), 2);
}

#[tokio::test]
async fn a_policy_can_act_on_advisories_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "").unwrap();
    let advisories = Arc::new(AdvisoryFile::open(file.path()).unwrap());
    let frozen = Frozen::start(|config| {
        policy(OutdatedAction::ColdRestart, 0)(config);
        config.outdated.only_advisories = true;
        config.outdated.advisories = Some(advisories);
    })
    .await;
    let checked = || frozen.agent.lock().seen.iter().filter(|seen| seen.contains("/agent/v1/frozen")).count();
    eventually("checks", || async { checked() > 2 }).await;
    assert_eq!(frozen.verdict(), None);
    let advisory = "[[advisory]]\nid = 'A-7'\ncomponent = 'guest'\nbelow = '0.4.1'\nnote = 'a hole'\n";
    std::fs::write(file.path(), advisory).unwrap();
    eventually("a verdict", || async { frozen.verdict().is_some() }).await;
    let verdict = frozen.verdict().unwrap();
    assert!(verdict.is_due(Timestamp::now()) && verdict.reason.contains("A-7"), "{}", verdict.reason);
    let list = frozen.list("").await;
    assert_eq!(list["items"][0]["components"][0]["advisories"][0]["note"], "a hole");
}
