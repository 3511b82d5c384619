//! Webhooks, and the deliveries that events queue for them.

use jiff::{SignedDuration, Timestamp};
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_store::sql::SqlStore;
use pandastack_store::webhooks::{
    Attempt, DeliveryClaim, NextAttempt, PreviousSecret, WebhookEvent, WebhookRecord, WebhookSpecRecord,
    WebhookStore,
};
use pandastack_store::workspaces::WorkspaceRecord;
use pandastack_store::{Change, SandboxRecord, Store, StoreError, TokenStore};
use pandastack_types::api::{DeliveryState, DeploymentStatus, WebhookEventKind};
use pandastack_types::limits::WEBHOOK_PENDING_MAX;
use pandastack_types::{Owner, Transition, WebhookId, WorkspaceId};
use serde_json::{Value, json};

use super::{apps, new_sandbox, now, running, running_as, secret, ws};

pub(super) fn new_webhook(events: &[&str]) -> WebhookRecord {
    WebhookRecord {
        id: WebhookId::random(),
        workspace: ws(),
        events: events.iter().map(|filter| filter.parse().unwrap()).collect(),
        enabled: true,
        disabled_reason: None,
        failing_since: None,
        created_at: now(),
        spec: WebhookSpecRecord {
            url: "https://example.com/x".into(),
            secret: "whsec_x".into(),
            previous: Some(PreviousSecret { secret: "whsec_y".into(), until: now() }),
            description: None,
        },
    }
}

async fn added(store: &dyn Store, webhook: WebhookRecord) -> WebhookRecord {
    store.insert_webhook(&webhook).await.unwrap();
    webhook
}

/// Kinds of the deliveries of a webhook, oldest first.
async fn kinds(store: &dyn Store, webhook: &WebhookRecord) -> Vec<String> {
    let deliveries = store.webhook_deliveries(&webhook.id, 100).await.unwrap();
    deliveries.into_iter().rev().map(|delivery| delivery.kind).collect()
}

fn ping(webhook: &WebhookRecord, at: Timestamp) -> WebhookEvent {
    let (id, workspace) = ("evt_ping".to_owned(), webhook.workspace.clone());
    WebhookEvent { id, workspace, kind: WebhookEventKind::Ping, at, data: json!({}) }
}

fn claim(at: Timestamp, retry_at: Timestamp) -> DeliveryClaim {
    DeliveryClaim { at, retry_at, limit: 8, per_workspace: 2, in_progress: [].into(), last: None }
}

fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

pub(super) async fn events_are_queued_for_the_webhooks_that_ask_for_them(store: &dyn Store) {
    let all = added(store, new_webhook(&[])).await;
    let sleep = added(store, new_webhook(&["sandbox.hibernated", "app.*"])).await;
    let off = added(store, WebhookRecord { enabled: false, ..new_webhook(&[]) }).await;
    let other: WorkspaceId = "other".parse().unwrap();
    store.insert_workspace(&WorkspaceRecord::new(other.clone(), now())).await.unwrap();
    let foreign = added(store, WebhookRecord { workspace: other.clone(), ..new_webhook(&[]) }).await;
    let mut queued = store.queued_deliveries();
    queued.mark_unchanged();
    let sandbox = running(store).await;
    assert!(queued.has_changed().unwrap());
    store.transition(&sandbox.id, Transition::Hibernated, &Change::at(now())).await.unwrap();
    // A transition that repeats the one before is no event.
    store.transition(&sandbox.id, Transition::Hibernated, &Change::at(now())).await.unwrap();
    store.transition(&sandbox.id, Transition::Lost, &Change::at(now()).because("gone")).await.unwrap();
    store.transition(&sandbox.id, Transition::Deleting, &Change::at(now())).await.unwrap();
    store.transition(&sandbox.id, Transition::Deleted, &Change::at(now())).await.unwrap();
    let expected = ["sandbox.created", "sandbox.hibernated", "sandbox.failed", "sandbox.deleted"];
    assert_eq!(kinds(store, &all).await, expected);
    assert_eq!(kinds(store, &sleep).await, ["sandbox.hibernated"]);
    let failed = store.webhook_deliveries(&all.id, 2).await.unwrap().pop().unwrap();
    let body: Value = serde_json::from_str(&failed.body).unwrap();
    assert_eq!((&body["type"], &body["data"]["detail"]), (&json!("sandbox.failed"), &json!("gone")));
    assert_eq!(body["data"]["sandbox_id"], json!(sandbox.id));
    assert_eq!(body["id"], json!(failed.event));
    // Machines of services are not sandboxes to their users.
    let owner = Some(Owner::App(pandastack_types::AppId::random()));
    running_as(store, SandboxRecord { owner, ..new_sandbox() }).await;
    assert_eq!(kinds(store, &all).await.len(), expected.len());
    for silent in [&off, &foreign] {
        assert_eq!(kinds(store, silent).await, [""; 0]);
    }
    store.delete_webhook(&ws(), &all.id).await.unwrap();
    assert!(store.webhook_deliveries(&all.id, 9).await.unwrap().is_empty());
    assert!(store.delete_webhook(&other, &sleep.id).await.is_err(), "of another workspace");
}

pub(super) async fn a_claimed_delivery_is_due_again(store: &dyn Store) {
    let webhook = added(store, new_webhook(&[])).await;
    let (at, retry_at) = (now(), later(now(), 30));
    let delivery = store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap();
    let (claimed, first) = store.claim_webhook_deliveries(&claim(at, retry_at)).await.unwrap().pop().unwrap();
    assert_eq!((claimed, first.id, first.attempts), (webhook.clone(), delivery.id, 1));
    assert!(store.claim_webhook_deliveries(&claim(at, retry_at)).await.unwrap().is_empty(), "claimed once");
    assert_eq!(store.next_webhook_delivery().await.unwrap(), Some(retry_at));
    let next = claim(retry_at, later(at, 60));
    let (_, again) = store.claim_webhook_deliveries(&next).await.unwrap().pop().unwrap();
    assert_eq!(again.attempts, 2);
    let attempt = |next| Attempt { delivery: delivery.id, at, result: "r".to_owned(), next };
    store.record_attempt(&attempt(NextAttempt::Retry(later(at, 90)))).await.unwrap();
    assert_eq!(store.webhook(&ws(), &webhook.id).await.unwrap().failing_since, Some(at));
    store.record_attempt(&attempt(NextAttempt::Delivered)).await.unwrap();
    assert_eq!(store.webhook(&ws(), &webhook.id).await.unwrap().failing_since, None);
    let ended = store.webhook_deliveries(&webhook.id, 9).await.unwrap().pop().unwrap();
    assert_eq!((ended.state, ended.ended_at, ended.due_at), (DeliveryState::Delivered, Some(at), None));
    assert_eq!(store.next_webhook_delivery().await.unwrap(), None);
    // By hand, once more.
    let again = store.redeliver(&webhook.id, delivery.id, at).await.unwrap().unwrap();
    assert_eq!((again.state, again.attempts, again.due_at), (DeliveryState::Pending, 0, Some(at)));
    assert!(store.redeliver(&webhook.id, delivery.id, at).await.unwrap().is_none(), "it is pending");
    assert!(store.redeliver(&WebhookId::random(), delivery.id, at).await.unwrap().is_none());
}

pub(super) async fn a_disabled_webhook_keeps_no_pending_delivery(store: &dyn Store) {
    let webhook = added(store, new_webhook(&[])).await;
    let at = now();
    let first = store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap();
    store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap();
    let next = NextAttempt::Disable("gone".to_owned());
    store
        .record_attempt(&Attempt { delivery: first.id, at, result: "410 Gone".to_owned(), next })
        .await
        .unwrap();
    let found = store.webhook(&ws(), &webhook.id).await.unwrap();
    assert_eq!((found.enabled, found.disabled_reason.as_deref()), (false, Some("gone")));
    let states: Vec<_> =
        store.webhook_deliveries(&webhook.id, 9).await.unwrap().iter().map(|one| one.state).collect();
    assert_eq!(states, [DeliveryState::Failed; 2]);
    let mut enable = |webhook: &mut WebhookRecord| {
        (webhook.enabled, webhook.disabled_reason, webhook.failing_since) = (true, None, None);
        webhook.spec.description = Some("again".to_owned());
    };
    let on = store.change_webhook(&ws(), &webhook.id, &mut enable).await.unwrap();
    assert_eq!((on.enabled, on.spec.description.as_deref()), (true, Some("again")));
    assert_eq!(store.webhooks(&ws()).await.unwrap(), [on]);
    store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap();
    store.change_webhook(&ws(), &webhook.id, &mut |webhook| webhook.enabled = false).await.unwrap();
    assert_eq!(store.next_webhook_delivery().await.unwrap(), None);
}

pub(super) async fn one_workspace_takes_only_its_share_of_a_claim(store: &dyn Store) {
    let busy = added(store, new_webhook(&[])).await;
    let other: WorkspaceId = "other".parse().unwrap();
    store.insert_workspace(&WorkspaceRecord::new(other.clone(), now())).await.unwrap();
    let quiet = added(store, WebhookRecord { workspace: other, ..new_webhook(&[]) }).await;
    let at = now();
    for _ in 0..5 {
        store.insert_delivery(&busy.id, &ping(&busy, at)).await.unwrap();
    }
    store.insert_delivery(&quiet.id, &ping(&quiet, at)).await.unwrap();
    let claimed = async |in_progress: &[(&WebhookRecord, u32)], limit: u32, last: Option<&WebhookRecord>| {
        let in_progress =
            in_progress.iter().map(|(webhook, count)| (webhook.workspace.clone(), *count)).collect();
        let last = last.map(|webhook| webhook.workspace.clone());
        let claim = DeliveryClaim { in_progress, limit, last, ..claim(at, later(at, 30)) };
        let claimed = store.claim_webhook_deliveries(&claim).await.unwrap();
        let of = |id: &WebhookId| claimed.iter().filter(|(webhook, _)| webhook.id == *id).count();
        (of(&busy.id), of(&quiet.id))
    };
    assert_eq!(claimed(&[(&busy, 2), (&quiet, 3)], 8, None).await, (0, 0));
    assert_eq!(claimed(&[(&busy, 1), (&quiet, 2)], 8, None).await, (1, 0));
    // Turns are taken: the other workspace is first when there is room for one.
    assert_eq!(claimed(&[], 1, Some(&busy)).await, (0, 1));
    assert_eq!(claimed(&[], 8, Some(&quiet)).await, (2, 0));
}

pub(super) async fn deliveries_without_a_webhook_that_wants_them_end(store: &dyn Store) {
    let kept = added(store, new_webhook(&[])).await;
    let at = now();
    store.change_webhook(&ws(), &kept.id, &mut |webhook| webhook.enabled = false).await.unwrap();
    // As if they had been committed by a transaction that began before.
    let late = store.insert_delivery(&kept.id, &ping(&kept, at)).await.unwrap();
    assert!(store.claim_webhook_deliveries(&claim(at, later(at, 30))).await.unwrap().is_empty());
    let left = store.webhook_deliveries(&kept.id, 9).await.unwrap();
    assert!(left.iter().all(|one| one.id != late.id), "{left:?}");
    assert_eq!(store.next_webhook_delivery().await.unwrap(), None);
}

pub(super) async fn old_and_excess_deliveries_are_pruned(store: &dyn Store) {
    let webhook = added(store, new_webhook(&[])).await;
    let at = now();
    let mut ids = Vec::new();
    for age in [60, 2, 1, 0] {
        let delivery = store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap();
        let (ended, result) = (later(at, -age), "200 OK".to_owned());
        let attempt = Attempt { delivery: delivery.id, at: ended, result, next: NextAttempt::Delivered };
        store.record_attempt(&attempt).await.unwrap();
        ids.push(delivery.id);
    }
    let pending = store.insert_delivery(&webhook.id, &ping(&webhook, at)).await.unwrap().id;
    let left = async || {
        let left = store.webhook_deliveries(&webhook.id, 9).await.unwrap();
        left.iter().map(|one| one.id).rev().collect::<Vec<_>>()
    };
    assert_eq!(store.prune_webhook_deliveries(later(at, -30), 9).await.unwrap(), 1);
    assert_eq!(left().await, [ids[1], ids[2], ids[3], pending]);
    assert_eq!(store.prune_webhook_deliveries(later(at, -30), 1).await.unwrap(), 2);
    assert_eq!(left().await, [ids[3], pending]);
}

pub(super) async fn deployments_are_announced(store: &dyn Store) {
    let webhook = added(store, new_webhook(&["app.*"])).await;
    let app = apps::new_app("shop");
    store.insert_app(&app).await.unwrap();
    let mut good = DeploymentRecord::queued(&app, "push", now());
    store.insert_deployment(&good).await.unwrap();
    good.status = DeploymentStatus::Deploying;
    assert!(store.put_deployment(&good, DeploymentStatus::Queued).await.unwrap());
    good.status = DeploymentStatus::Live;
    store.go_live(&good, DeploymentStatus::Superseded).await.unwrap();
    let mut bad = DeploymentRecord::queued(&app, "push", now());
    store.insert_deployment(&bad).await.unwrap();
    bad.status = DeploymentStatus::Failed;
    bad.spec.error = Some("npm ended with 1".to_owned());
    assert!(store.put_deployment(&bad, DeploymentStatus::Queued).await.unwrap());
    assert!(!store.put_deployment(&bad, DeploymentStatus::Queued).await.unwrap());
    assert_eq!(kinds(store, &webhook).await, ["app.deployed", "app.deployment_failed"]);
    let newest = store.webhook_deliveries(&webhook.id, 1).await.unwrap().pop().unwrap();
    let data = serde_json::from_str::<Value>(&newest.body).unwrap()["data"].clone();
    let found = (&data["app"], &data["deployment_id"], &data["error"]);
    assert_eq!(found, (&json!("shop"), &json!(bad.id), &json!("npm ended with 1")));
}

#[tokio::test]
async fn a_webhook_that_falls_behind_gets_no_more_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = SqlStore::sqlite(&path, &secret()).await.unwrap();
    store.ensure_workspace(&ws(), now()).await.unwrap();
    let webhook = added(&store, new_webhook(&[])).await;
    store.insert_delivery(&webhook.id, &ping(&webhook, now())).await.unwrap();
    // Copies of that delivery, up to the limit.
    let columns = "webhook_id, workspace_id, event_id, kind, body, state, attempts, created_at_us, due_at_us";
    let copies = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) \
         INSERT INTO webhook_deliveries ({columns}) SELECT {columns} FROM webhook_deliveries, n"
    );
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let fill = async |count: u32| {
        sqlx::query(sqlx::AssertSqlSafe(copies.as_str())).bind(count).execute(&pool).await.unwrap();
    };
    fill(WEBHOOK_PENDING_MAX - 2).await;
    store.insert_delivery(&webhook.id, &ping(&webhook, now())).await.unwrap();
    let refused = store.insert_delivery(&webhook.id, &ping(&webhook, now())).await;
    assert!(matches!(refused, Err(StoreError::Quota { .. })), "{refused:?}");
    running(&store).await;
    assert_eq!(store.webhook_deliveries(&webhook.id, 1).await.unwrap()[0].kind, "ping");
}
