//! Sandboxes, snapshots, events and idempotency.

use jiff::{SignedDuration, Timestamp};
use pandastack_store::record::{SnapshotSpecRecord, after_seconds};
use pandastack_store::*;
use pandastack_types::api::OnTimeout;
use pandastack_types::{Owner, SandboxId, SandboxState, SnapshotId, Transition, TreeId, WorkspaceId};

use super::{new_sandbox, now, running, ws};

pub(super) async fn owned_machines_are_listed_by_their_owner_only(store: &dyn Store) {
    let app = |id: &str| Owner::App(id.parse().unwrap());
    let owned = SandboxRecord { owner: Some(app("a")), ..new_sandbox() };
    let plain = new_sandbox();
    store.insert_sandboxes(&[owned.clone(), plain.clone()], None).await.unwrap();
    assert_eq!(store.sandboxes(&Select::Workspace(ws())).await.unwrap(), [plain]);
    assert_eq!(store.sandboxes(&Select::Owner(app("a"))).await.unwrap(), [owned]);
    assert!(store.sandboxes(&Select::Owner(app("b"))).await.unwrap().is_empty());
}

pub(super) async fn rows_come_back_as_they_went_in(store: &dyn Store) {
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
    // One transaction: if the second row cannot be written, the first is not written either.
    let fresh = new_sandbox();
    assert!(store.insert_sandboxes(&[fresh.clone(), plain], None).await.is_err());
    assert!(matches!(store.sandbox(None, &fresh.id).await, Err(StoreError::NotFound { .. })));
    assert!(store.events_after(&ws(), &fresh.id, 0, 9).await.unwrap().is_empty());
}

pub(super) async fn one_transition_is_one_event(store: &dyn Store) {
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

pub(super) async fn refused_transitions_change_nothing(store: &dyn Store) {
    let id = running(store).await.id;
    store.transition(&id, Transition::Lost, &Change::at(now()).because("crashed")).await.unwrap();
    let before = store.sandbox(None, &id).await.unwrap();
    let refused = store.transition(&id, Transition::Woken, &Change::at(now())).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert_eq!(store.sandbox(None, &id).await.unwrap(), before);
    assert_eq!(before.spec.failure.as_deref(), Some("crashed"));
    assert_eq!(store.events_after(&ws(), &id, 0, 9).await.unwrap().len(), 3);
}

pub(super) async fn deleted_rows_are_gone_and_their_events_stay(store: &dyn Store) {
    let id = running(store).await.id;
    for transition in [Transition::Deleting, Transition::Deleted] {
        store.transition(&id, transition, &Change::at(now())).await.unwrap();
    }
    assert!(matches!(store.sandbox(None, &id).await, Err(StoreError::NotFound { .. })));
    let again = store.transition(&id, Transition::Created, &Change::at(now())).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })), "{again:?}");
    assert_eq!(store.events_after(&ws(), &id, 0, 9).await.unwrap().len(), 4);
}

pub(super) async fn workspaces_do_not_see_each_other(store: &dyn Store) {
    let other: WorkspaceId = "other".parse().unwrap();
    store.ensure_workspace(&other, now()).await.unwrap();
    let record = running(store).await;
    assert!(store.sandbox(Some(&other), &record.id).await.is_err());
    assert!(store.sandboxes(&Select::Workspace(other.clone())).await.unwrap().is_empty());
    assert!(store.events_after(&other, &record.id, 0, 9).await.unwrap().is_empty());
    let orphan = SandboxRecord { workspace: "nobody".parse().unwrap(), ..new_sandbox() };
    assert!(store.insert_sandboxes(&[orphan], None).await.is_err(), "no row without a workspace");
}

pub(super) async fn expiry_finds_exactly_the_due(store: &dyn Store) {
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

pub(super) async fn a_lifetime_that_ended_in_sleep_begins_again_awake(store: &dyn Store) {
    // Woken before that is recorded: one that sleeps at its end does not go to sleep again at once.
    for (on_timeout, begins_again) in [(OnTimeout::Hibernate, true), (OnTimeout::Kill, false)] {
        let mut record = running(store).await;
        (record.expires_at, record.spec.on_timeout) = (Some(now()), on_timeout);
        let ended = record.expires_at;
        for transition in [Transition::Hibernated, Transition::Woken] {
            record.apply(transition, &Change::at(now())).unwrap();
        }
        assert_eq!(record.expires_at > ended, begins_again, "{on_timeout:?}");
    }
    let id = running(store).await.id;
    let change = Change { ends_lifetime: true, ..Change::at(now()) };
    let asleep = store.transition(&id, Transition::Hibernated, &change).await.unwrap().record;
    assert_eq!(asleep.expires_at, None);
    let at = now();
    let awake = store.transition(&id, Transition::Woken, &Change::at(at)).await.unwrap().record;
    assert_eq!(awake.expires_at, after_seconds(at, awake.spec.ttl_seconds));
}

pub(super) async fn snapshots_and_their_events(store: &dyn Store) {
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
        assert_eq!(store.insert_snapshot(&snapshot, false).await.unwrap().kind, "snapshot_created");
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

pub(super) async fn old_rows_are_pruned(store: &dyn Store) {
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

pub(super) async fn concurrent_writers_lose_nothing(store: &dyn Store) {
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

pub(super) async fn idempotency(store: &dyn Store) {
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
