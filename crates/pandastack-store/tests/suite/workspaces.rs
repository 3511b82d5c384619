//! Quotas, settings, keys, hosts, databases, the audit log and usage.

use jiff::Timestamp;
use pandastack_store::record::after_seconds;
use pandastack_store::*;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::{Role, WorkspaceState};
use pandastack_types::audit::ChainCheck;
use pandastack_types::limits::TOKENS_PER_WORKSPACE_MAX;
use pandastack_types::{DatabaseId, Owner, SandboxId, WorkspaceId};

use super::{new_sandbox, now, running, running_as, ws};

pub(super) async fn the_first_secret_is_the_one_of_the_installation(store: &dyn Store) {
    assert_eq!(store.secret_fingerprint("one").await.unwrap(), "one");
    assert_eq!(store.secret_fingerprint("two").await.unwrap(), "one");
    store.replace_secret_fingerprint("two").await.unwrap();
    assert_eq!(store.secret_fingerprint("one").await.unwrap(), "two");
}

pub(super) async fn quotas_are_kept_and_count_what_is_there(store: &dyn Store) {
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
    // The second of two in one call exceeds the quota, so neither is added.
    let refused = store.insert_sandboxes(&[sized(1, 512), sized(1, 512)], None).await;
    assert!(
        matches!(refused, Err(StoreError::OverQuota { name: "cpu", used: 3, wanted: 1, limit: 3 })),
        "{refused:?}"
    );
    store.insert_sandboxes(&[sized(1, 256)], None).await.unwrap();
    let used = QuotaUse { sandboxes: 2, cpu: 3, memory_mb: 768, snapshot_mb: 0 };
    assert_eq!(store.quota_use(&ws()).await.unwrap(), used);
}

pub(super) async fn settings_of_a_workspace_are_its_own(store: &dyn Store) {
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

pub(super) async fn tokens_have_a_quota_and_a_last_one(store: &dyn Store) {
    let key = || TokenRecord {
        prefix: format!("pds_{}", SandboxId::random()),
        workspace: ws(),
        hash: vec![7; 32],
        label: "k".into(),
        role: Role::Owner,
        operator: false,
        allow_from: vec!["10.0.0.0/8".into()],
        created_at: now(),
        expires_at: after_seconds(now(), 9),
        last_used_at: None,
        session: None,
    };
    let first = key();
    store.insert_token(&first, None).await.unwrap();
    assert_eq!(store.token(&first.prefix).await.unwrap(), Some(first.clone()));
    assert_eq!(store.token("pds_00000000").await.unwrap(), None);
    let last = store.delete_token(&ws(), &first.prefix).await;
    assert!(matches!(last, Err(StoreError::LastToken { kind: "owner", .. })), "{last:?}");
    for _ in 1..TOKENS_PER_WORKSPACE_MAX {
        store.insert_token(&key(), None).await.unwrap();
    }
    assert!(matches!(store.insert_token(&key(), None).await, Err(StoreError::Quota { .. })));
    assert_eq!(store.count_tokens().await.unwrap(), TOKENS_PER_WORKSPACE_MAX);
    let used = now();
    store.touch_tokens(&[(first.prefix.clone(), used)]).await.unwrap();
    let seen = store.token(&first.prefix).await.unwrap().unwrap().last_used_at;
    assert_eq!(seen.map(Timestamp::as_microsecond), Some(used.as_microsecond()));
    let stranger: WorkspaceId = "stranger".parse().unwrap();
    assert!(store.delete_token(&stranger, &first.prefix).await.is_err());
    store.delete_token(&ws(), &first.prefix).await.unwrap();
    assert!(store.token(&first.prefix).await.unwrap().is_none());
    let operator = TokenRecord { operator: true, ..key() };
    store.insert_token(&operator, None).await.unwrap();
    let last = store.delete_token(&ws(), &operator.prefix).await;
    assert!(matches!(last, Err(StoreError::LastToken { kind: "operator", .. })), "{last:?}");
}

pub(super) async fn a_rotated_key_ends_and_keeps_an_earlier_end(store: &dyn Store) {
    let key = |expires_at| TokenRecord {
        prefix: format!("pds_{}", SandboxId::random()),
        workspace: ws(),
        hash: vec![7; 32],
        label: "k".into(),
        role: Role::Developer,
        operator: false,
        allow_from: Vec::new(),
        created_at: now(),
        expires_at,
        last_used_at: None,
        session: None,
    };
    let (soon, later) = (after_seconds(now(), 60).unwrap(), after_seconds(now(), 600).unwrap());
    for (before, until, expect) in [(None, soon, soon), (Some(soon), later, soon), (Some(later), soon, soon)]
    {
        let (old, new) = (key(before), key(None));
        store.insert_token(&old, None).await.unwrap();
        let ended = store.rotate_token(&old.prefix, until, &new, None).await.unwrap();
        assert_eq!(ended.expires_at, Some(expect), "{before:?} {until}");
        assert_eq!(store.token(&old.prefix).await.unwrap(), Some(ended));
        assert_eq!(store.token(&new.prefix).await.unwrap(), Some(new));
    }
    let (old, foreign) = (key(None), TokenRecord { workspace: "other".parse().unwrap(), ..key(None) });
    store.insert_token(&old, None).await.unwrap();
    let refused = store.rotate_token(&old.prefix, soon, &foreign, None).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    assert_eq!(store.token(&old.prefix).await.unwrap(), Some(old), "a stranger ends nothing");
}

pub(super) async fn workspaces_are_suspended_resumed_and_deleted_for_good(store: &dyn Store) {
    use pandastack_store::workspaces::{WorkspaceMove, WorkspaceRecord};
    let shop: WorkspaceId = "shop".parse().unwrap();
    let record = WorkspaceRecord::new(shop.clone(), now());
    store.insert_workspace(&record).await.unwrap();
    let again = store.insert_workspace(&record).await;
    assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    assert_eq!(store.workspace(&shop).await.unwrap(), record);
    assert_eq!(store.workspaces().await.unwrap().len(), 2);
    let due = SandboxRecord { workspace: shop.clone(), expires_at: Some(now()), ..new_sandbox() };
    store.insert_sandboxes(std::slice::from_ref(&due), None).await.unwrap();
    store.transition(&due.id, pandastack_types::Transition::Created, &Change::at(now())).await.unwrap();
    let (at, hour) = (now(), after_seconds(now(), 3600).unwrap());
    let is_due = async |at| store.sandboxes(&Select::Due(at)).await.unwrap().len();
    assert_eq!(is_due(hour).await, 1);
    let suspend = WorkspaceMove::Suspend(Some("unpaid".into()));
    let suspended = store.move_workspace(&shop, &suspend, at).await.unwrap();
    assert_eq!((suspended.state, suspended.suspended_at), (WorkspaceState::Suspended, Some(at)));
    let later = store.move_workspace(&shop, &WorkspaceMove::Suspend(None), hour).await.unwrap();
    assert_eq!(later, suspended, "suspended again, it stays as it was");
    assert_eq!(store.closed_workspaces().await.unwrap(), [suspended]);
    let fresh = SandboxRecord { workspace: shop.clone(), ..new_sandbox() };
    let refused = store.insert_sandboxes(&[fresh], None).await;
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    assert_eq!((is_due(hour).await, store.next_expiry().await.unwrap()), (0, None), "lifetimes stand still");
    let resumed = store.move_workspace(&shop, &WorkspaceMove::Resume, hour).await.unwrap();
    assert_eq!(resumed, record);
    let row = store.sandbox(None, &due.id).await.unwrap();
    let stood_still = hour.as_microsecond() - at.as_microsecond();
    let before = due.expires_at.unwrap().as_microsecond();
    assert_eq!(row.expires_at.map(|end| end.as_microsecond() - before), Some(stood_still));
    // Deleted: first its keys, then its contents; its name stays reserved forever.
    let early = store.move_workspace(&shop, &WorkspaceMove::Deleted, at).await;
    assert!(matches!(early, Err(StoreError::Held(_))), "{early:?}");
    store.move_workspace(&shop, &WorkspaceMove::Delete, at).await.unwrap();
    let undone = store.move_workspace(&shop, &WorkspaceMove::Resume, at).await;
    assert!(matches!(undone, Err(StoreError::Held(_))), "{undone:?}");
    let all = store.sandboxes(&Select::WholeWorkspace(shop.clone())).await.unwrap();
    assert_eq!(all.len(), 1);
    store.move_workspace(&shop, &WorkspaceMove::Deleted, at).await.unwrap();
    assert!(matches!(store.workspace(&shop).await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.workspaces().await.unwrap().len(), 1);
    let reused = store.insert_workspace(&record).await;
    assert!(matches!(reused, Err(StoreError::Held(_))), "{reused:?}");
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

pub(super) async fn audit_entries_are_kept_in_order(store: &dyn Store) {
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

pub(super) async fn usage_is_recorded_as_differences(store: &dyn Store) {
    let id = running(store).await.id;
    let total = |cpu_ms| Usage { cpu_ms, sent_bytes: 7, ..Usage::default() };
    for cpu_ms in [100, 100, 250] {
        store.record_usage(&[(id.clone(), total(cpu_ms))], now()).await.unwrap();
    }
    assert_eq!(store.sandbox(None, &id).await.unwrap().spec.usage, total(250));
    let unknown = SandboxId::random();
    store.record_usage(&[(unknown, total(1))], now()).await.unwrap();
}

pub(super) async fn usage_is_summed_by_period_and_sandbox(store: &dyn Store) {
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

pub(super) async fn usage_is_summed_by_kind_of_service(store: &dyn Store) {
    use pandastack_types::api::UsageKind;
    let own = running(store).await;
    let owner = Some(Owner::Drill(DatabaseId::random()));
    let database = running_as(store, SandboxRecord { owner, ..new_sandbox() }).await;
    let used = |cpu_ms| Usage { cpu_ms, ..Usage::default() };
    store.record_usage(&[(own.id, used(10)), (database.id, used(30))], now()).await.unwrap();
    let (from, to) = (Timestamp::from_second(0).unwrap(), after_seconds(now(), 60).unwrap());
    let kinds = store.usage_by_kind(&ws(), from, to).await.unwrap();
    let shown: Vec<_> = kinds.iter().map(|one| (one.kind, one.used.creates, one.used.cpu_ms)).collect();
    assert_eq!(shown, [(UsageKind::Database, 1, 30), (UsageKind::Sandbox, 1, 10)]);
}

pub(super) async fn hosts_are_replaced(store: &dyn Store) {
    let report = serde_json::json!({"host": "host-a", "address": "unix:/a", "version": "1", "engine": "e",
        "isolation": "i", "memory_total_mb": 1, "memory_free_mb": 1, "disk_free_bytes": 1, "slots_free": 1,
        "templates": [], "sandboxes": [], "snapshots": [], "at": "2026-01-01T00:00:00Z"});
    let mut host = HostRecord { summary: serde_json::from_value(report).unwrap(), last_seen_at: now() };
    store.put_host(&host).await.unwrap();
    host.summary.memory_free_mb = 5;
    store.put_host(&host).await.unwrap();
    assert_eq!(store.hosts().await.unwrap(), [host]);
}

pub(super) async fn databases_are_kept_by_workspace_and_state(store: &dyn Store) {
    use pandastack_store::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
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
    // A record read before a drill ended is written after it: neither change is lost.
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

pub(super) async fn console_sessions_are_found_by_hash_and_end(store: &dyn Store) {
    use pandastack_store::console::{CONSOLE_SESSIONS_PER_KEY_MAX, ConsoleSession};
    let at = now();
    let session = |number: u32, used: u64| ConsoleSession {
        hash: number.to_be_bytes().to_vec(),
        id: format!("s{number}"),
        workspace: ws(),
        token_prefix: "pds_x".into(),
        browser: "b".into(),
        created_at: at,
        last_used_at: after_seconds(at, used).unwrap(),
        expires_at: after_seconds(at, 900).unwrap(),
    };
    let of_other = ConsoleSession { token_prefix: "pds_y".into(), ..session(99, 0) };
    store.insert_console_session(&of_other).await.unwrap();
    for number in 0..=CONSOLE_SESSIONS_PER_KEY_MAX {
        store.insert_console_session(&session(number, u64::from(number))).await.unwrap();
    }
    // One more session than a key may have: only its least recently used one is removed, and no
    // other key's.
    assert_eq!(store.console_session(&of_other.hash).await.unwrap(), Some(of_other));
    store.delete_console_session(&ws(), "s99").await.unwrap();
    assert_eq!(store.console_session(&0_u32.to_be_bytes()).await.unwrap(), None);
    assert_eq!(store.console_sessions(&ws()).await.unwrap().len(), CONSOLE_SESSIONS_PER_KEY_MAX as usize);
    let one = store.console_session(&1_u32.to_be_bytes()).await.unwrap().unwrap();
    assert_eq!(one, session(1, 1));
    let later = after_seconds(at, 500).unwrap();
    store.touch_console_session("s1", later).await.unwrap();
    let other: WorkspaceId = "other".parse().unwrap();
    assert!(store.delete_console_session(&other, "s2").await.is_err());
    store.delete_console_session(&ws(), "s2").await.unwrap();
    assert_eq!(store.console_session(&2_u32.to_be_bytes()).await.unwrap(), None);
    store.prune_console_sessions(at, later).await.unwrap();
    let kept = store.console_sessions(&ws()).await.unwrap();
    assert_eq!(kept.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), ["s1"]);
    store.prune_console_sessions(after_seconds(at, 900).unwrap(), at).await.unwrap();
    assert!(store.console_sessions(&ws()).await.unwrap().is_empty());
}

pub(super) async fn audit_entries_are_chained(store: &dyn Store) {
    let ends = store.audit_ends().await.unwrap();
    assert_eq!((ends.pruned.as_str(), ends.head.as_str()), ("", ""));
    let old = Timestamp::from_second(1_000).unwrap();
    let other: WorkspaceId = "other".parse().unwrap();
    let records = [
        audit_record(&ws(), None, old),
        audit_record(&other, None, old),
        audit_record(&ws(), None, now()),
        // Of a slow call, which started before the one above.
        audit_record(&ws(), None, old),
    ];
    for batch in records.chunks(2) {
        store.insert_audit(batch).await.unwrap();
    }
    let lines = store.audit_lines(0, 10).await.unwrap();
    let mut check = ChainCheck::after(Some(String::new()));
    for (line, record) in lines.iter().zip(&records) {
        assert_eq!(line.workspace, record.workspace);
        check.check(line).unwrap();
    }
    assert_eq!((check.checked(), check.head()), (4, Some(store.audit_ends().await.unwrap().head.as_str())));
    assert_eq!(store.audit_lines(lines[0].entry.id, 1).await.unwrap(), lines[1..2]);
    assert_eq!(store.prune_audit(Timestamp::from_second(2_000).unwrap()).await.unwrap(), 2);
    assert_eq!(store.audit_lines(0, 10).await.unwrap(), lines[2..], "no hole is made");
    assert_eq!(store.audit_ends().await.unwrap().pruned, lines[1].hash);
    assert_eq!(store.audit_exported().await.unwrap(), 0);
    store.put_audit_exported(7).await.unwrap();
    assert_eq!(store.audit_exported().await.unwrap(), 7);
}
