//! Apps: requirements on every store; listed in `main.rs`.

use pandastack_types::WorkspaceId;
use pandastack_types::api::{DeploymentStatus as S, EnvScope, GithubRepoId};
use pandastack_types::limits::{
    DEPLOYMENTS_PER_APP_MAX, DOMAINS_PER_APP_MAX, PREVIEW_REPOS_PER_WORKSPACE_MAX, PREVIEWS_PER_APP_MAX,
};

use pandastack_store::apps::UnreportedDeployment;
use pandastack_store::apps::record::{
    AppRecord, AppSpec, DeploymentRecord, DomainRecord, EnvEntry, PreviewRepoRecord,
};
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Store, StoreError};

pub(super) fn new_app(name: &str) -> AppRecord {
    AppRecord::new(
        WorkspaceId::default_workspace(),
        name.to_owned(),
        AppSpec { git_url: Some("https://é.example/a".into()), ..AppSpec::default() },
        now(),
    )
}

pub(super) async fn apps_are_found_by_id_and_name(store: &dyn Store) {
    let mut app = new_app("shop");
    store.insert_app(&app).await.unwrap();
    assert!(matches!(store.insert_app(&new_app("shop")).await, Err(StoreError::Exists { .. })));
    assert_eq!(store.app(None, "shop").await.unwrap(), app);
    assert_eq!(store.app(Some(&app.workspace), app.id.as_str()).await.unwrap(), app);
    let other: WorkspaceId = "other".parse().unwrap();
    assert!(matches!(store.app(Some(&other), "shop").await, Err(StoreError::NotFound { .. })));
    app.spec.port = 3000;
    assert!(store.put_app(&app).await.unwrap());
    assert!(!store.put_app(&app).await.unwrap(), "somebody else changed it since it was read");
    assert_eq!(store.app(None, "shop").await.unwrap().spec.port, 3000);
    store.delete_app(&app.id).await.unwrap();
    assert!(store.apps(None).await.unwrap().is_empty());
}

pub(super) async fn previews_belong_to_an_app(store: &dyn Store) {
    let (app, other) = (new_app("shop"), new_app("other"));
    store.insert_app(&app).await.unwrap();
    store.insert_app(&other).await.unwrap();
    let preview = |of: &AppRecord, number: u64| AppRecord {
        preview_of: Some(of.id.clone()),
        created_at: after_seconds(now(), number).unwrap(),
        ..new_app(&format!("pr-{number}-{}", of.name))
    };
    for number in 0..PREVIEWS_PER_APP_MAX {
        store.insert_app(&preview(&app, number)).await.unwrap();
    }
    let one_more = store.insert_app(&preview(&app, PREVIEWS_PER_APP_MAX)).await;
    assert!(matches!(one_more, Err(StoreError::Quota { limit: PREVIEWS_PER_APP_MAX, .. })));
    store.insert_app(&preview(&other, 0)).await.unwrap();
    let found = store.previews(&app.id).await.unwrap();
    assert_eq!(found.len() as u64, PREVIEWS_PER_APP_MAX);
    assert_eq!((found[0].name.as_str(), found[0].preview_of.as_ref()), ("pr-0-shop", Some(&app.id)));
    store.delete_app(&found[0].id).await.unwrap();
    store.insert_app(&preview(&app, 0)).await.unwrap();
    // An app may be gone before its previews are.
    store.delete_app(&app.id).await.unwrap();
    assert_eq!(store.previews(&app.id).await.unwrap().len() as u64, PREVIEWS_PER_APP_MAX);
}

pub(super) async fn a_deployment_goes_live_in_one_step(store: &dyn Store) {
    let app = new_app("shop");
    store.insert_app(&app).await.unwrap();
    let mut first = DeploymentRecord::queued(&app, "api", now());
    let mut second = DeploymentRecord {
        created_at: after_seconds(now(), 1).unwrap(),
        ..DeploymentRecord::queued(&app, "push", now())
    };
    for one in [&first, &second] {
        store.insert_deployment(one).await.unwrap();
    }
    let third = DeploymentRecord::queued(&app, "poll", now());
    let is_newest = |all: &[DeploymentRecord]| all.first().is_some_and(|newest| newest.id == second.id);
    assert!(!store.insert_deployment_unless(&third, &is_newest).await.unwrap(), "the newest comes first");
    assert_eq!(store.deployments_in_progress().await.unwrap(), [first.clone(), second.clone()]);
    for one in [&mut first, &mut second] {
        one.status = S::Deploying;
        assert!(store.put_deployment(one, S::Queued).await.unwrap());
        assert!(!store.put_deployment(one, S::Queued).await.unwrap(), "it is queued no more");
        one.status = S::Live;
        store.go_live(one, S::Superseded).await.unwrap();
    }
    assert_eq!(store.app(None, "shop").await.unwrap().active, Some(second.id.clone()));
    let statuses: Vec<_> = store.deployments(&app.id).await.unwrap().iter().map(|one| one.status).collect();
    assert_eq!(statuses, [S::Live, S::Superseded]);
    assert!(store.go_live(&second, S::Superseded).await.is_err(), "it is not being deployed");
    assert!(store.deployments_in_progress().await.unwrap().is_empty());
}

pub(super) async fn deployments_are_untold_until_their_end_is_told(store: &dyn Store) {
    let app = new_app("shop");
    store.insert_app(&app).await.unwrap();
    let mut one = DeploymentRecord::queued(&app, "push", now());
    store.insert_deployment(&one).await.unwrap();
    let untold = |one: &DeploymentRecord, is_start_reported| {
        [UnreportedDeployment { deployment: one.clone(), is_start_reported }]
    };
    assert_eq!(store.unreported_deployments(9).await.unwrap(), untold(&one, false));
    store.mark_reported(&one.id, false).await.unwrap();
    assert_eq!(store.unreported_deployments(9).await.unwrap(), untold(&one, true));
    one.status = S::Failed;
    assert!(store.put_deployment(&one, S::Queued).await.unwrap());
    assert_eq!(
        store.unreported_deployments(9).await.unwrap(),
        untold(&one, true),
        "a change leaves what was told"
    );
    store.mark_reported(&one.id, true).await.unwrap();
    assert!(store.unreported_deployments(9).await.unwrap().is_empty());
}

pub(super) async fn logs_are_read_from_any_line(store: &dyn Store) {
    let app = new_app("shop");
    store.insert_app(&app).await.unwrap();
    let one = DeploymentRecord::queued(&app, "api", now());
    store.insert_deployment(&one).await.unwrap();
    let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let other = DeploymentRecord::queued(&app, "poll", now());
    assert!(
        store
            .insert_deployment_unless(&other, &|all| all.first().is_none_or(|newest| newest.id != one.id))
            .await
            .unwrap()
    );
    store.append_log(&one.id, 0, &lines(&["a", "b"])).await.unwrap();
    store.append_log(&one.id, 2, &lines(&["ü"])).await.unwrap();
    assert_eq!(store.count_log(&one.id).await.unwrap(), 3);
    assert_eq!(store.log_lines(&one.id, 1, 10).await.unwrap(), lines(&["b", "ü"]));
    assert_eq!(store.log_lines(&one.id, 0, 1).await.unwrap(), lines(&["a"]));
    for n in 0..=DEPLOYMENTS_PER_APP_MAX {
        let at = after_seconds(now(), n + 1).unwrap();
        let old = DeploymentRecord {
            status: S::Failed,
            created_at: at,
            ..DeploymentRecord::queued(&app, "api", at)
        };
        store.insert_deployment(&old).await.unwrap();
    }
    let left = store.deployments(&app.id).await.unwrap();
    assert_eq!(
        left.len() as u64,
        DEPLOYMENTS_PER_APP_MAX + 2,
        "the oldest that is over is forgotten, the queued ones not"
    );
    store.delete_app(&app.id).await.unwrap();
    assert_eq!(store.count_log(&one.id).await.unwrap(), 0);
}

pub(super) async fn domains_and_deliveries_are_unique(store: &dyn Store) {
    let (app, other) = (new_app("shop"), new_app("other"));
    store.insert_app(&app).await.unwrap();
    store.insert_app(&other).await.unwrap();
    let domain = |app: &AppRecord, domain: &str| DomainRecord {
        domain: domain.into(),
        app: app.id.clone(),
        created_at: now(),
        verified_at: Some(now()),
    };
    let unproven = |app: &AppRecord, domain: &str| DomainRecord {
        domain: domain.into(),
        app: app.id.clone(),
        created_at: now(),
        verified_at: None,
    };
    // An unverified claim routes nothing and blocks no other claim.
    store.claim_domain(&unproven(&other, "a.example")).await.unwrap();
    assert_eq!(store.app_of_domain("a.example").await.unwrap(), None);
    store.claim_domain(&domain(&app, "a.example")).await.unwrap();
    assert!(matches!(store.claim_domain(&domain(&other, "a.example")).await, Err(StoreError::Exists { .. })));
    assert_eq!(store.app_of_domain("a.example").await.unwrap(), Some(app.id.clone()));
    assert!(store.domains(&other.id).await.unwrap().is_empty(), "the claim is over");
    let again = store.claim_domain(&unproven(&app, "a.example")).await;
    assert!(matches!(again, Err(StoreError::Exists { .. })), "a proven one stays proven");
    assert!(store.delete_domain(&other.id, "a.example").await.is_err());
    store.delete_domain(&app.id, "a.example").await.unwrap();
    assert_eq!(store.app_of_domain("a.example").await.unwrap(), None);
    for n in 0..DOMAINS_PER_APP_MAX {
        store.claim_domain(&domain(&app, &format!("{n}.example"))).await.unwrap();
    }
    assert!(matches!(store.claim_domain(&domain(&app, "b.example")).await, Err(StoreError::Quota { .. })));
    assert!(!store.has_delivery(&app.id, "1").await.unwrap());
    for app in [&app, &app, &other] {
        store.note_delivery(&app.id, "1", now()).await.unwrap();
    }
    assert!(
        store.has_delivery(&app.id, "1").await.unwrap() && store.has_delivery(&other.id, "1").await.unwrap()
    );
    assert!(!store.has_delivery(&app.id, "2").await.unwrap());
    assert_eq!(store.prune_deliveries(after_seconds(now(), 1).unwrap()).await.unwrap(), 2);
    assert!(!store.has_delivery(&app.id, "1").await.unwrap());
}

fn repo_id(number: i64) -> GithubRepoId {
    number.try_into().unwrap()
}

pub(super) async fn repositories_are_remembered_while_something_is_said_of_them(store: &dyn Store) {
    let (ws, other): (_, WorkspaceId) = (WorkspaceId::default_workspace(), "other".parse().unwrap());
    store.ensure_workspace(&other, now()).await.unwrap();
    let (begun, later) = (now(), after_seconds(now(), 1).unwrap());
    let entry = EnvEntry {
        value: "s\u{e9}cret".into(),
        secret: true,
        scope: EnvScope::Preview,
        stage: Default::default(),
        updated_at: begun,
    };
    let mut give = |repo: &mut PreviewRepoRecord| repo.env.insert("KEY".into(), entry.clone()).is_none();
    let given = store.change_preview_repo(&ws, repo_id(7), begun, &mut give).await.unwrap();
    assert_eq!((given.created_at, given.enabled_at, given.env.len()), (begun, None, 1));
    assert_eq!(store.preview_repos(&ws).await.unwrap(), std::slice::from_ref(&given));
    assert!(store.preview_repos(&other).await.unwrap().is_empty());
    let mut enable = |repo: &mut PreviewRepoRecord| {
        (repo.enabled_at, repo.full_name) = (Some(later), Some("me/shop".into()));
        true
    };
    let enabled = store.change_preview_repo(&ws, repo_id(7), later, &mut enable).await.unwrap();
    let expect = PreviewRepoRecord { enabled_at: Some(later), full_name: Some("me/shop".into()), ..given };
    assert_eq!(enabled, expect, "the rest of it stays");
    store.change_preview_repo(&ws, repo_id(i64::MAX), later, &mut enable).await.unwrap();
    store.change_preview_repo(&other, repo_id(7), later, &mut enable).await.unwrap();
    let ids: Vec<_> = store.preview_repos(&ws).await.unwrap().iter().map(|repo| repo.id).collect();
    assert_eq!(ids, [repo_id(7), repo_id(i64::MAX)]);
    let mut refuse = |repo: &mut PreviewRepoRecord| {
        repo.env.clear();
        false
    };
    store.change_preview_repo(&ws, repo_id(7), later, &mut refuse).await.unwrap();
    assert_eq!(store.preview_repos(&ws).await.unwrap()[0], enabled, "nothing is written of what is refused");
    let mut disable = |repo: &mut PreviewRepoRecord| repo.enabled_at.take().is_some();
    for id in [repo_id(7), repo_id(i64::MAX)] {
        store.change_preview_repo(&ws, id, later, &mut disable).await.unwrap();
    }
    let left = [PreviewRepoRecord { enabled_at: None, ..enabled }];
    assert_eq!(store.preview_repos(&ws).await.unwrap(), left, "the other one has no variables");
    let mut clear = |repo: &mut PreviewRepoRecord| repo.env.remove("KEY").is_some();
    store.change_preview_repo(&ws, repo_id(7), later, &mut clear).await.unwrap();
    assert!(store.preview_repos(&ws).await.unwrap().is_empty());
    assert_eq!(store.preview_repos(&other).await.unwrap().len(), 1, "another workspace's");
}

pub(super) async fn repositories_have_a_quota(store: &dyn Store) {
    let ws = WorkspaceId::default_workspace();
    let mut enable = |repo: &mut PreviewRepoRecord| repo.enabled_at.replace(now()).is_none();
    for number in 1..=i64::try_from(PREVIEW_REPOS_PER_WORKSPACE_MAX).unwrap() {
        store.change_preview_repo(&ws, repo_id(number), now(), &mut enable).await.unwrap();
    }
    let one_more = store.change_preview_repo(&ws, repo_id(i64::MAX), now(), &mut enable).await;
    assert!(matches!(one_more, Err(StoreError::Quota { limit: PREVIEW_REPOS_PER_WORKSPACE_MAX, .. })));
    let mut rename = |repo: &mut PreviewRepoRecord| repo.full_name.replace("me/shop".into()).is_none();
    store.change_preview_repo(&ws, repo_id(1), now(), &mut rename).await.unwrap();
}
