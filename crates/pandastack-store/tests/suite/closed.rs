//! Refusals after the fact: requests of a workspace that was closed since, or of a deleted key.

use pandastack_store::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
use pandastack_store::record::{SnapshotSpecRecord, after_seconds};
use pandastack_store::schedules::{ScheduleRecord, ScheduleSpec};
use pandastack_store::templates::BuildState;
use pandastack_store::webhooks::WebhookRecord;
use pandastack_store::workspaces::{WorkspaceMove, WorkspaceRecord};
use pandastack_store::*;
use pandastack_types::api::{HttpTarget, Role, ScheduleOptions, ScheduleTarget, ScheduleTiming};
use pandastack_types::{DatabaseId, SandboxId, ScheduleId, SnapshotId, WorkspaceId};

use super::{apps, functions, new_sandbox, now, templates, volumes, webhooks, ws};

pub(super) fn schedule() -> ScheduleRecord {
    let timing = ScheduleTiming { every_seconds: Some(60), ..ScheduleTiming::default() };
    let http = HttpTarget { url: "http://x/".into(), method: None, headers: [].into(), body: None };
    let (target, options) = (ScheduleTarget::Http(http), ScheduleOptions::default());
    ScheduleRecord {
        id: ScheduleId::random(),
        workspace: ws(),
        name: "s".into(),
        spec: ScheduleSpec { timing, anchor: now(), target, options, paused_reason: None },
        paused: false,
        cursor: now(),
        next_run_at: None,
        revision: 0,
        failures: 0,
        last_run_at: None,
        alert: None,
        created_at: now(),
        updated_at: now(),
    }
}

fn database() -> DatabaseRecord {
    DatabaseRecord {
        id: DatabaseId::random(),
        workspace: ws(),
        state: DatabaseState::Creating,
        sandbox: None,
        created_at: now(),
        drill: None,
        spec: DatabaseSpecRecord { size: "1g".into(), ..Default::default() },
    }
}

pub(super) async fn nothing_is_added_to_a_closed_workspace(store: &dyn Store) {
    let shop: WorkspaceId = "shop".parse().unwrap();
    store.insert_workspace(&WorkspaceRecord::new(shop.clone(), now())).await.unwrap();
    let sandbox = SandboxRecord { workspace: shop.clone(), ..new_sandbox() };
    store.insert_sandboxes(std::slice::from_ref(&sandbox), None).await.unwrap();
    for closing in [WorkspaceMove::Suspend(None), WorkspaceMove::Delete, WorkspaceMove::Deleted] {
        store.move_workspace(&shop, &closing, now()).await.unwrap();
        let mut app = apps::new_app("late");
        app.workspace = shop.clone();
        let mut function = functions::new_function("late");
        function.workspace = shop.clone();
        let mut template = templates::template("late");
        template.workspace = shop.clone();
        let mut volume = volumes::new_volume("late");
        volume.workspace = shop.clone();
        let snapshot = SnapshotRecord {
            id: SnapshotId::random(),
            workspace: shop.clone(),
            sandbox: sandbox.id.clone(),
            host: sandbox.host.clone(),
            created_at: now(),
            expires_at: None,
            spec: SnapshotSpecRecord::default(),
        };
        let build = templates::build(&template, BuildState::Queued);
        let run = functions::queued(&function, now());
        let results = [
            ("app", store.insert_app(&app).await),
            ("function", store.insert_function(&function).await),
            ("run", store.enqueue_run(&run).await),
            (
                "webhook",
                store
                    .insert_webhook(&WebhookRecord { workspace: shop.clone(), ..webhooks::new_webhook(&[]) })
                    .await,
            ),
            (
                "schedule",
                store.insert_schedule(&ScheduleRecord { workspace: shop.clone(), ..schedule() }).await,
            ),
            (
                "database",
                store.insert_database(&DatabaseRecord { workspace: shop.clone(), ..database() }).await,
            ),
            ("template", store.ensure_template(&template).await.map(drop)),
            ("build", store.insert_build(&build).await),
            ("volume", store.insert_volumes(&[volume]).await),
            ("snapshot", store.insert_snapshot(&snapshot, false).await.map(drop)),
        ];
        for (what, result) in results {
            assert!(matches!(result, Err(StoreError::Closed { .. })), "{what}, {closing:?}: {result:?}");
        }
    }
}

pub(super) async fn a_key_that_is_gone_makes_no_other(store: &dyn Store) {
    let key = |expires_at| TokenRecord {
        prefix: format!("pds_{}", SandboxId::random()),
        workspace: ws(),
        hash: vec![7; 32],
        label: "k".into(),
        role: Role::Owner,
        operator: false,
        allow_from: Vec::new(),
        created_at: now(),
        expires_at,
        last_used_at: None,
        session: None,
    };
    let (owner, stolen, expired) = (key(None), key(None), key(Some(now())));
    for token in [&owner, &stolen, &expired] {
        store.insert_token(token, None).await.unwrap();
    }
    store.insert_token(&key(None), Some(&stolen.prefix)).await.unwrap();
    store.delete_token(&ws(), &stolen.prefix).await.unwrap();
    let until = after_seconds(now(), 60).unwrap();
    for gone in [&stolen.prefix, &expired.prefix] {
        let made = store.insert_token(&key(None), Some(gone)).await;
        assert!(matches!(made, Err(StoreError::Revoked { .. })), "{made:?}");
        let rotated = store.rotate_token(&owner.prefix, until, &key(None), Some(gone)).await;
        assert!(matches!(rotated, Err(StoreError::Revoked { .. })), "{rotated:?}");
    }
    assert_eq!(store.token(&owner.prefix).await.unwrap(), Some(owner), "and ends none");
    assert_eq!(store.count_tokens().await.unwrap(), 3);
}
