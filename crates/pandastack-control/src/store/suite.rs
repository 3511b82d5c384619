//! What every store must do, run on each backend: `run_all` is the list, `open` gives a fresh, empty store.

use std::future::Future;

use jiff::{SignedDuration, Timestamp};
use pandastack_types::agent_api::Usage;
use pandastack_types::api::{OnTimeout, Scope};
use pandastack_types::limits::TOKENS_PER_WORKSPACE_MAX;
use pandastack_types::{SandboxId, SandboxState, SnapshotId, Transition, TreeId, WorkspaceId};

use super::record::{SnapshotSpecRecord, after_seconds};
use super::tree_suite::{a_promotion_decides_about_its_tree, one_of_two_promotions_wins};
use super::volume_suite::{a_volume_has_one_writer_or_readers, a_volume_is_deleted_in_two_steps};
use super::*;
use crate::app::now;
use crate::apps::suite::{
    a_deployment_goes_live_in_one_step, apps_are_found_by_id_and_name,
    deployments_are_untold_until_their_end_is_told, domains_and_deliveries_are_unique,
    logs_are_read_from_any_line, previews_belong_to_an_app,
    repositories_are_remembered_while_something_is_said_of_them, repositories_have_a_quota,
};
use crate::auth::new_key;
use crate::functions::suite::{
    calls_are_due_in_order_and_without_those_of_full_functions,
    dead_letters_are_found_and_used_time_is_summed,
    functions_are_found_by_id_and_name_and_their_changes_counted,
};

pub(super) fn ws() -> WorkspaceId {
    WorkspaceId::default_workspace()
}

pub(super) fn new_sandbox() -> SandboxRecord {
    let at = now();
    SandboxRecord {
        id: SandboxId::random(),
        workspace: ws(),
        host: "host-a".parse().unwrap(),
        state: SandboxState::Creating,
        incarnation: 1,
        template: "base".into(),
        parent: None,
        tree: None,
        owner: None,
        created_at: at,
        changed_at: at,
        expires_at: after_seconds(at, 60),
        metadata: [("k".to_owned(), "é".to_owned())].into(),
        spec: SandboxSpecRecord { pause_ms: Some(1.25), ..SandboxSpecRecord::default() },
    }
}

async fn running(store: &dyn Store) -> SandboxRecord {
    let record = new_sandbox();
    store.insert_sandboxes(std::slice::from_ref(&record), None).await.unwrap();
    store.transition(&record.id, Transition::Created, &Change::at(now())).await.unwrap().record
}

async fn run_all<S: Store, F: Future<Output = S>>(open: impl Fn() -> F) {
    macro_rules! check {
        ($($test:ident),* $(,)?) => {$(
            let store = open().await;
            store.ensure_workspace(&ws(), now()).await.unwrap();
            eprintln!("store: {}", stringify!($test));
            $test(&store).await;
            store.close().await;
        )*};
    }
    check!(
        rows_come_back_as_they_went_in,
        owned_machines_are_listed_by_their_owner_only,
        one_transition_is_one_event,
        refused_transitions_change_nothing,
        deleted_rows_are_gone_and_their_events_stay,
        workspaces_do_not_see_each_other,
        expiry_finds_exactly_the_due,
        a_lifetime_that_ended_in_sleep_begins_again_awake,
        usage_is_recorded_as_differences,
        snapshots_and_their_events,
        databases_are_kept_by_workspace_and_state,
        hosts_are_replaced,
        tokens_have_a_quota_and_a_last_one,
        quotas_are_kept_and_count_what_is_there,
        settings_of_a_workspace_are_its_own,
        idempotency,
        old_rows_are_pruned,
        concurrent_writers_lose_nothing,
        a_promotion_decides_about_its_tree,
        one_of_two_promotions_wins,
        audit_entries_are_kept_in_order,
        usage_is_summed_by_period_and_sandbox,
        apps_are_found_by_id_and_name,
        previews_belong_to_an_app,
        a_deployment_goes_live_in_one_step,
        logs_are_read_from_any_line,
        deployments_are_untold_until_their_end_is_told,
        domains_and_deliveries_are_unique,
        repositories_are_remembered_while_something_is_said_of_them,
        repositories_have_a_quota,
        a_volume_has_one_writer_or_readers,
        a_volume_is_deleted_in_two_steps,
        functions_are_found_by_id_and_name_and_their_changes_counted,
        calls_are_due_in_order_and_without_those_of_full_functions,
        dead_letters_are_found_and_used_time_is_summed,
    );
}

async fn quotas_are_kept_and_count_what_is_there(store: &dyn Store) {
    use pandastack_types::api::{Quota, QuotaUse};
    assert_eq!(store.quota(&ws()).await.unwrap(), Quota::default());
    let sized = |cpu, memory_mb| {
        let spec = SandboxSpecRecord { cpu, memory_mb, ..SandboxSpecRecord::default() };
        SandboxRecord { spec, ..new_sandbox() }
    };
    store.insert_sandboxes(&[sized(2, 512)], None).await.unwrap();
    let quota = Quota { cpu: Some(3), ..Quota::default() };
    store.set_quota(&ws(), &quota).await.unwrap();
    assert_eq!(store.quota(&ws()).await.unwrap(), quota);
    // Of two in one call the second is too much, so neither is there.
    let refused = store.insert_sandboxes(&[sized(1, 512), sized(1, 512)], None).await;
    assert!(
        matches!(refused, Err(StoreError::OverQuota { name: "cpu", used: 3, wanted: 1, limit: 3 })),
        "{refused:?}"
    );
    store.insert_sandboxes(&[sized(1, 256)], None).await.unwrap();
    let used = QuotaUse { sandboxes: 2, cpu: 3, memory_mb: 768, snapshot_mb: 0 };
    assert_eq!(store.quota_use(&ws()).await.unwrap(), used);
}

async fn settings_of_a_workspace_are_its_own(store: &dyn Store) {
    use pandastack_types::api::{PatchWorkspace, WorkspaceSettings};
    use pandastack_types::preview::Visibility;
    let other: WorkspaceId = "other".parse().unwrap();
    assert_eq!(store.workspace_settings(&ws()).await.unwrap(), WorkspaceSettings::default());
    let private = WorkspaceSettings { default_visibility: Visibility::Private };
    let patch = PatchWorkspace { default_visibility: Some(Visibility::Private) };
    assert_eq!(store.patch_workspace(&ws(), &patch).await.unwrap(), private);
    assert_eq!(store.patch_workspace(&ws(), &PatchWorkspace::default()).await.unwrap(), private);
    assert_eq!(store.workspace_settings(&ws()).await.unwrap(), private);
    assert_eq!(store.workspace_settings(&other).await.unwrap(), WorkspaceSettings::default());
}

async fn owned_machines_are_listed_by_their_owner_only(store: &dyn Store) {
    let owned = SandboxRecord { owner: Some("app:a".into()), ..new_sandbox() };
    let plain = new_sandbox();
    store.insert_sandboxes(&[owned.clone(), plain.clone()], None).await.unwrap();
    assert_eq!(store.sandboxes(&Select::Workspace(ws())).await.unwrap(), [plain]);
    assert_eq!(store.sandboxes(&Select::Owner("app:a".into())).await.unwrap(), [owned]);
    assert!(store.sandboxes(&Select::Owner("app:b".into())).await.unwrap().is_empty());
}

async fn rows_come_back_as_they_went_in(store: &dyn Store) {
    let tree = TreeId::random();
    let mut child = new_sandbox();
    child.parent = Some(SandboxId::random());
    child.tree = Some(tree.clone());
    let plain = new_sandbox();
    store.insert_sandboxes(&[child.clone(), plain.clone()], None).await.unwrap();
    assert_eq!(store.sandbox(Some(&ws()), &child.id).await.unwrap(), child);
    assert_eq!(store.sandboxes(&Select::Tree(ws(), tree)).await.unwrap(), [child.clone()]);
    assert_eq!(store.sandboxes(&Select::Workspace(ws())).await.unwrap().len(), 2);
    assert_eq!(store.sandboxes(&Select::Host(plain.host.clone())).await.unwrap().len(), 2);
    assert_eq!(store.count_states().await.unwrap(), [(SandboxState::Creating, 2)]);
    // One transaction: a second row that cannot be written takes the first with it.
    let fresh = new_sandbox();
    assert!(store.insert_sandboxes(&[fresh.clone(), plain], None).await.is_err());
    assert!(matches!(store.sandbox(None, &fresh.id).await, Err(StoreError::NotFound { .. })));
    assert!(store.events_after(&ws(), &fresh.id, 0, 9).await.unwrap().is_empty());
}

async fn one_transition_is_one_event(store: &dyn Store) {
    let id = running(store).await.id;
    let change = Change::at(now()).because("asked");
    let moved = store.transition(&id, Transition::Paused, &change).await.unwrap();
    assert_eq!((moved.record.state, moved.record.changed_at), (SandboxState::Paused, change.at));
    let repeated = store.transition(&id, Transition::Paused, &Change::at(now())).await.unwrap();
    assert_eq!((repeated.event, repeated.record.changed_at), (None, change.at));
    let events = store.events_after(&ws(), &id, 0, 9).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["creating", "created", "paused"]);
    assert_eq!(events[2], moved.event.unwrap());
    assert_eq!(events[2].detail.as_deref(), Some("asked"));
    assert_eq!(store.events_tail(&ws(), &id, 2).await.unwrap(), events[1..]);
    assert_eq!(store.events_after(&ws(), &id, events[0].id, 1).await.unwrap(), events[1..2]);
}

async fn refused_transitions_change_nothing(store: &dyn Store) {
    let id = running(store).await.id;
    store.transition(&id, Transition::Lost, &Change::at(now()).because("crashed")).await.unwrap();
    let before = store.sandbox(None, &id).await.unwrap();
    let refused = store.transition(&id, Transition::Woken, &Change::at(now())).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert_eq!(store.sandbox(None, &id).await.unwrap(), before);
    assert_eq!(before.spec.failure.as_deref(), Some("crashed"));
    assert_eq!(store.events_after(&ws(), &id, 0, 9).await.unwrap().len(), 3);
}

async fn deleted_rows_are_gone_and_their_events_stay(store: &dyn Store) {
    let id = running(store).await.id;
    for transition in [Transition::Deleting, Transition::Deleted] {
        store.transition(&id, transition, &Change::at(now())).await.unwrap();
    }
    assert!(matches!(store.sandbox(None, &id).await, Err(StoreError::NotFound { .. })));
    let again = store.transition(&id, Transition::Created, &Change::at(now())).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })), "{again:?}");
    assert_eq!(store.events_after(&ws(), &id, 0, 9).await.unwrap().len(), 4);
}

async fn workspaces_do_not_see_each_other(store: &dyn Store) {
    let other: WorkspaceId = "other".parse().unwrap();
    store.ensure_workspace(&other, now()).await.unwrap();
    let record = running(store).await;
    assert!(store.sandbox(Some(&other), &record.id).await.is_err());
    assert!(store.sandboxes(&Select::Workspace(other.clone())).await.unwrap().is_empty());
    assert!(store.events_after(&other, &record.id, 0, 9).await.unwrap().is_empty());
    let orphan = SandboxRecord { workspace: "nobody".parse().unwrap(), ..new_sandbox() };
    assert!(store.insert_sandboxes(&[orphan], None).await.is_err(), "no row without a workspace");
}

async fn expiry_finds_exactly_the_due(store: &dyn Store) {
    assert_eq!(store.next_expiry().await.unwrap(), None);
    let (soon, later) = (running(store).await, running(store).await);
    let at = |seconds: u64| after_seconds(now(), seconds);
    let lifetime = |expires_at| Amendment::Lifecycle {
        ttl_seconds: 5,
        persistent: false,
        idle_timeout_seconds: 1,
        idle_given: true,
        checkpoints: None,
        on_timeout: OnTimeout::Hibernate,
        expires_at,
    };
    let (one, two) = (at(5), at(50));
    store.amend(&soon.id, &lifetime(one), now()).await.unwrap();
    let amended = store.amend(&later.id, &lifetime(two), now()).await.unwrap();
    assert_eq!(amended.event.unwrap().kind, "lifecycle_changed");
    assert_eq!(amended.record.spec.on_timeout, OnTimeout::Hibernate);
    assert_eq!(store.next_expiry().await.unwrap(), one);
    assert!(store.sandboxes(&Select::Due(now())).await.unwrap().is_empty());
    let due = store.sandboxes(&Select::Due(one.unwrap())).await.unwrap();
    assert_eq!(due.iter().map(|r| &r.id).collect::<Vec<_>>(), [&soon.id]);
    store.transition(&soon.id, Transition::Deleting, &Change::at(now())).await.unwrap();
    assert_eq!(store.next_expiry().await.unwrap(), two, "what is being deleted is not due");
}

async fn a_lifetime_that_ended_in_sleep_begins_again_awake(store: &dyn Store) {
    let id = running(store).await.id;
    let change = Change { ends_lifetime: true, ..Change::at(now()) };
    let asleep = store.transition(&id, Transition::Hibernated, &change).await.unwrap().record;
    assert_eq!(asleep.expires_at, None);
    let at = now();
    let awake = store.transition(&id, Transition::Woken, &Change::at(at)).await.unwrap().record;
    assert_eq!(awake.expires_at, after_seconds(at, awake.spec.ttl_seconds));
}

async fn usage_is_recorded_as_differences(store: &dyn Store) {
    let id = running(store).await.id;
    let total = |cpu_ms| Usage { cpu_ms, sent_bytes: 7, ..Usage::default() };
    for cpu_ms in [100, 100, 250] {
        store.record_usage(&[(id.clone(), total(cpu_ms))], now()).await.unwrap();
    }
    assert_eq!(store.sandbox(None, &id).await.unwrap().spec.usage, total(250));
    let unknown = SandboxId::random();
    store.record_usage(&[(unknown, total(1))], now()).await.unwrap();
}

async fn snapshots_and_their_events(store: &dyn Store) {
    let sandbox = running(store).await;
    let mut taken = Vec::new();
    for name in ["one", "two"] {
        let snapshot = SnapshotRecord {
            id: SnapshotId::random(),
            workspace: ws(),
            sandbox: sandbox.id.clone(),
            host: sandbox.host.clone(),
            created_at: now(),
            expires_at: (name == "two").then(|| after_seconds(now(), 60)).flatten(),
            spec: SnapshotSpecRecord { name: Some(name.into()), size_bytes: 1 << 40, ..Default::default() },
        };
        assert_eq!(store.insert_snapshot(&snapshot).await.unwrap().kind, "snapshot_created");
        taken.push(snapshot);
    }
    assert_eq!(store.snapshot(&ws(), &taken[0].id).await.unwrap(), taken[0]);
    let names = |list: Vec<SnapshotRecord>| list.into_iter().filter_map(|s| s.spec.name).collect::<Vec<_>>();
    assert_eq!(names(store.snapshots(&ws(), None).await.unwrap()), ["two", "one"], "newest first");
    let other = SandboxId::random();
    assert!(store.snapshots(&ws(), Some(&other)).await.unwrap().is_empty());
    assert_eq!(store.snapshot_ids(&sandbox.host).await.unwrap().len(), 2);
    let due = taken[1].expires_at;
    assert_eq!(store.next_snapshot_expiry().await.unwrap(), due);
    assert!(store.snapshots_due(now()).await.unwrap().is_empty());
    assert_eq!(names(store.snapshots_due(due.unwrap()).await.unwrap()), ["two"]);
    let stranger: WorkspaceId = "stranger".parse().unwrap();
    assert!(store.delete_snapshot(&stranger, &taken[0].id, now()).await.is_err());
    let (deleted, event) = store.delete_snapshot(&ws(), &taken[0].id, now()).await.unwrap();
    assert_eq!((deleted, event.kind.as_str()), (taken[0].clone(), "snapshot_deleted"));
    assert!(store.snapshot(&ws(), &taken[0].id).await.is_err());
}

async fn hosts_are_replaced(store: &dyn Store) {
    let report = serde_json::json!({"host": "host-a", "address": "unix:/a", "version": "1", "engine": "e",
        "isolation": "i", "memory_total_mb": 1, "memory_free_mb": 1, "disk_free_bytes": 1, "slots_free": 1,
        "templates": [], "sandboxes": [], "snapshots": [], "at": "2026-01-01T00:00:00Z"});
    let mut host = HostRecord { summary: serde_json::from_value(report).unwrap(), last_seen_at: now() };
    store.put_host(&host).await.unwrap();
    host.summary.memory_free_mb = 5;
    store.put_host(&host).await.unwrap();
    assert_eq!(store.hosts().await.unwrap(), [host]);
}

async fn tokens_have_a_quota_and_a_last_one(store: &dyn Store) {
    let key = || new_key(ws(), "k".into(), Scope::Admin, after_seconds(now(), 9)).unwrap().record;
    let first = key();
    store.insert_token(&first).await.unwrap();
    assert_eq!(store.token(&first.prefix).await.unwrap(), Some(first.clone()));
    assert_eq!(store.token("pds_00000000").await.unwrap(), None);
    let last = store.delete_token(&ws(), &first.prefix).await;
    assert!(matches!(last, Err(StoreError::LastToken(_))), "{last:?}");
    for _ in 1..TOKENS_PER_WORKSPACE_MAX {
        store.insert_token(&key()).await.unwrap();
    }
    assert!(matches!(store.insert_token(&key()).await, Err(StoreError::Quota { .. })));
    assert_eq!(store.count_tokens().await.unwrap(), TOKENS_PER_WORKSPACE_MAX);
    store.touch_tokens(&[(first.prefix.clone(), now())]).await.unwrap();
    let stranger: WorkspaceId = "stranger".parse().unwrap();
    assert!(store.delete_token(&stranger, &first.prefix).await.is_err());
    store.delete_token(&ws(), &first.prefix).await.unwrap();
    assert!(!store.tokens(&ws()).await.unwrap().contains(&first));
}

async fn idempotency(store: &dyn Store) {
    use IdempotencyOutcome::*;
    let key = IdempotencyKey { workspace: ws(), key: "k".into() };
    let claim = |fingerprint: u8, instance: &str, not_before| IdempotencyClaim {
        key: key.clone(),
        fingerprint: vec![fingerprint],
        instance: instance.into(),
        at: now(),
        not_before,
    };
    let ask = |fingerprint, instance: &'static str| {
        let claim = claim(fingerprint, instance, Timestamp::MIN);
        async move { store.idempotency_begin(&claim).await.unwrap() }
    };
    assert!(matches!(ask(1, "a").await, Fresh));
    assert!(matches!(ask(1, "a").await, Running));
    assert!(matches!(ask(2, "a").await, Mismatch));
    assert!(matches!(ask(1, "b").await, Fresh), "a dead process's claim without a row is taken over");
    let record = new_sandbox();
    store.insert_sandboxes(std::slice::from_ref(&record), Some(&key)).await.unwrap();
    assert!(matches!(ask(1, "c").await, Orphan(found) if found.id == record.id));
    store.idempotency_finish(&key, Some((201, b"body"))).await.unwrap();
    assert!(matches!(ask(1, "c").await, Replay { status: 201, body } if body == b"body"));
    let late = claim(2, "c", after_seconds(now(), 1).unwrap());
    assert!(matches!(store.idempotency_begin(&late).await.unwrap(), Fresh), "forgotten after the window");
    store.idempotency_finish(&key, None).await.unwrap();
    assert!(matches!(ask(3, "c").await, Fresh), "released");
}

async fn old_rows_are_pruned(store: &dyn Store) {
    let id = running(store).await.id;
    for _ in 0..5 {
        store.transition(&id, Transition::Paused, &Change::at(now())).await.unwrap();
        store.transition(&id, Transition::Resumed, &Change::at(now())).await.unwrap();
    }
    assert_eq!(store.prune(Timestamp::MIN, Timestamp::MIN, 4).await.unwrap(), 8);
    assert_eq!(store.events_after(&ws(), &id, 0, 99).await.unwrap().len(), 4);
    let future = now().checked_add(SignedDuration::from_secs(9)).unwrap();
    assert_eq!(store.prune(future, future, 4).await.unwrap(), 4);
}

async fn concurrent_writers_lose_nothing(store: &dyn Store) {
    let made = futures::future::join_all((0..50).map(|_| running(store))).await;
    let moves = made.iter().flat_map(|record| {
        [Transition::Paused, Transition::Hibernated, Transition::Deleting].map(|transition| async move {
            store.transition(&record.id, transition, &Change::at(now())).await
        })
    });
    futures::future::join_all(moves).await;
    let states = store.count_states().await.unwrap();
    assert_eq!(states, [(SandboxState::Stopping, 50)], "every delete won");
}

mod sqlite {
    use super::super::sql::SqlStore;

    #[tokio::test]
    async fn the_suite() {
        let dir = tempfile::tempdir().unwrap();
        let next = std::sync::atomic::AtomicUsize::new(0);
        super::run_all(|| {
            let name = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
            let path = dir.path().join(name);
            async move { SqlStore::sqlite(&path).await.unwrap() }
        })
        .await;
    }

    #[tokio::test]
    async fn usage_events_are_append_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let store = SqlStore::sqlite(&path).await.unwrap();
        super::TokenStore::ensure_workspace(&store, &super::ws(), super::now()).await.unwrap();
        super::running(&store).await;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let creates: i64 =
            sqlx::query_scalar("SELECT SUM(creates) FROM usage_events").fetch_one(&pool).await.unwrap();
        assert_eq!(creates, 1);
        assert!(sqlx::query("DELETE FROM usage_events").execute(&pool).await.is_err());
        assert!(sqlx::query("UPDATE usage_events SET cpu_ms = 0").execute(&pool).await.is_err());
    }
}

mod postgres {
    use std::time::Duration;

    use super::super::postgres_server::Server;
    use super::super::replicas::{News, Replica, ReplicaStore, Session};
    use super::super::sql::SqlStore;
    use super::TokenStore;

    #[tokio::test]
    async fn the_suite() {
        let Some(server) = Server::start("the store's suite on PostgreSQL") else { return };
        super::run_all(|| async { SqlStore::postgres(&server.database().await).await.unwrap() }).await;
    }

    /// The news of a session until something of a kind is among them.
    async fn heard(session: &mut dyn Session, wanted: impl Fn(&News) -> bool) -> News {
        loop {
            let news = tokio::time::timeout(Duration::from_secs(10), session.news()).await.unwrap().unwrap();
            if let Some(found) = news.into_iter().find(&wanted) {
                return found;
            }
        }
    }

    #[tokio::test]
    async fn one_of_several_servers_leads_and_all_hear_what_each_commits() {
        let Some(server) = Server::start("replicas on one PostgreSQL database") else { return };
        let url = server.database().await;
        let (one, two) = (SqlStore::postgres(&url).await.unwrap(), SqlStore::postgres(&url).await.unwrap());
        let mut first = one.join("a", "unix:/a").await.unwrap();
        let mut second = two.join("b", "unix:/b").await.unwrap();
        assert!(first.beat().await.unwrap() && first.beat().await.unwrap());
        assert!(!second.beat().await.unwrap());
        let shown = |found: Vec<Replica>| {
            found.into_iter().map(|r| (r.instance, r.address, r.leads)).collect::<Vec<_>>()
        };
        let expect =
            [("a", "unix:/a", true), ("b", "unix:/b", false)].map(|(i, a, l)| (i.into(), a.into(), l));
        assert_eq!(shown(two.replicas().await.unwrap()), expect);
        // Each hears of a commit of either, the committer too.
        one.ensure_workspace(&super::ws(), super::now()).await.unwrap();
        let record = super::running(&one).await;
        for session in [&mut first, &mut second] {
            let created =
                heard(session.as_mut(), |news| matches!(news, News::Event(e) if e.kind == "created")).await;
            assert!(matches!(created, News::Event(event) if event.sandbox_id == record.id));
        }
        two.tell_names_changed().await.unwrap();
        assert_eq!(heard(first.as_mut(), |news| *news == News::Names).await, News::Names);
        // The end of a session, orderly or not, frees what it held.
        first.leave().await;
        drop(first);
        assert!(second.beat().await.unwrap());
        assert_eq!(two.replicas().await.unwrap().len(), 1);
        drop(second);
        let mut third = one.join("c", "unix:/c").await.unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !third.beat().await.unwrap() {
            assert!(std::time::Instant::now() < deadline, "a dropped session still leads");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn usage_events_are_append_only() {
        let Some(server) = Server::start("append-only tables on PostgreSQL") else { return };
        let url = server.database().await;
        let store = SqlStore::postgres(&url).await.unwrap();
        super::TokenStore::ensure_workspace(&store, &super::ws(), super::now()).await.unwrap();
        super::running(&store).await;
        let pool = sqlx::AnyPool::connect(&url).await.unwrap();
        for change in
            ["DELETE FROM usage_events", "UPDATE usage_events SET cpu_ms = 0", "TRUNCATE usage_events"]
        {
            assert!(sqlx::query(change).execute(&pool).await.is_err(), "{change}");
        }
    }
}

fn audit_record(workspace: &WorkspaceId, sandbox: Option<&SandboxId>, at: Timestamp) -> ledger::AuditRecord {
    let entry = pandastack_types::api::AuditEntry {
        id: 0,
        at,
        token_prefix: "pds_12345678".into(),
        token_label: "é".into(),
        method: "POST".into(),
        route: "/v1/sandboxes/{id}/exec".into(),
        path: "/v1/x".into(),
        sandbox_id: sandbox.cloned(),
        status: 201,
        request_id: "r".into(),
        took_ms: 7,
    };
    ledger::AuditRecord { workspace: workspace.clone(), entry }
}

async fn audit_entries_are_kept_in_order(store: &dyn Store) {
    let (sandbox, old) = (SandboxId::random(), Timestamp::from_second(1_000).unwrap());
    let other: WorkspaceId = "other".parse().unwrap();
    let records = [
        audit_record(&ws(), None, old),
        audit_record(&ws(), Some(&sandbox), now()),
        audit_record(&other, Some(&sandbox), now()),
        audit_record(&ws(), None, now()),
    ];
    store.insert_audit(&records).await.unwrap();
    let all = ledger::AuditSelect { limit: 10, ..Default::default() };
    let entries = store.audit(&ws(), &all).await.unwrap();
    assert_eq!(entries.len(), 3, "another workspace's are not seen");
    assert!(entries.windows(2).all(|pair| pair[0].id > pair[1].id));
    let expect = pandastack_types::api::AuditEntry { id: entries[1].id, ..records[1].entry.clone() };
    assert_eq!(entries[1], expect);
    let of_sandbox = ledger::AuditSelect { sandbox: Some(sandbox), ..all.clone() };
    assert_eq!(store.audit(&ws(), &of_sandbox).await.unwrap().len(), 1);
    let before = ledger::AuditSelect { before: Some(entries[1].id), ..all.clone() };
    assert_eq!(store.audit(&ws(), &before).await.unwrap(), entries[2..]);
    assert_eq!(store.prune_audit(Timestamp::from_second(2_000).unwrap()).await.unwrap(), 1);
    assert_eq!(store.audit(&ws(), &all).await.unwrap().len(), 2);
}

async fn databases_are_kept_by_workspace_and_state(store: &dyn Store) {
    use super::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
    let record = DatabaseRecord {
        id: pandastack_types::DatabaseId::random(),
        workspace: ws(),
        state: DatabaseState::Creating,
        sandbox: None,
        created_at: now(),
        drill: None,
        spec: DatabaseSpecRecord { label: Some("é".into()), size: "1g".into(), ..Default::default() },
    };
    store.insert_database(&record).await.unwrap();
    assert_eq!(store.database(Some(&ws()), &record.id).await.unwrap(), record);
    let other: WorkspaceId = "other".parse().unwrap();
    assert!(matches!(store.database(Some(&other), &record.id).await, Err(StoreError::NotFound { .. })));
    assert!(store.databases(&other).await.unwrap().is_empty());
    assert_eq!(store.databases_in(DatabaseState::Creating).await.unwrap(), std::slice::from_ref(&record));
    let ready =
        DatabaseRecord { state: DatabaseState::Ready, sandbox: Some(SandboxId::random()), ..record.clone() };
    store.update_database(&ready).await.unwrap();
    assert_eq!(store.databases(&ws()).await.unwrap(), std::slice::from_ref(&ready));
    assert!(store.databases_in(DatabaseState::Creating).await.unwrap().is_empty());
    // Whoever read the record before a drill ended writes it after: neither change is lost.
    let drill = pandastack_types::api::DatabaseDrill { at: now(), ok: true, took_ms: 7, error: None };
    store.note_drill(&ready.id, &drill).await.unwrap();
    let renamed = DatabaseRecord {
        spec: DatabaseSpecRecord { label: Some("b".into()), ..ready.spec.clone() },
        ..ready.clone()
    };
    store.update_database(&renamed).await.unwrap();
    let found = store.database(None, &ready.id).await.unwrap();
    assert_eq!((found.drill.as_ref(), found.spec.label.as_deref()), (Some(&drill), Some("b")));
    store.delete_database(&ready.id).await.unwrap();
    store.delete_database(&ready.id).await.unwrap();
    assert!(matches!(store.update_database(&ready).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.note_drill(&ready.id, &drill).await, Err(StoreError::NotFound { .. })));
}

async fn usage_is_summed_by_period_and_sandbox(store: &dyn Store) {
    let (busy, idle) = (running(store).await, running(store).await);
    let used = |cpu_ms| Usage { cpu_ms, sent_bytes: 5, ..Usage::default() };
    store.record_usage(&[(busy.id.clone(), used(30)), (idle.id.clone(), used(10))], now()).await.unwrap();
    store.record_usage(&[(busy.id.clone(), used(50))], now()).await.unwrap();
    let (from, to) = (Timestamp::from_second(0).unwrap(), after_seconds(now(), 60).unwrap());
    let total = store.usage(&ws(), from, to).await.unwrap();
    assert_eq!((total.creates, total.cpu_ms, total.sent_bytes), (2, 60, 10));
    let by_sandbox = store.usage_by_sandbox(&ws(), from, to, 1).await.unwrap();
    assert_eq!((by_sandbox.len(), &by_sandbox[0].sandbox_id, by_sandbox[0].used.cpu_ms), (1, &busy.id, 50));
    assert_eq!(store.usage(&ws(), from, from).await.unwrap(), Default::default());
}
