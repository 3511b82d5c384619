//! Secrets in rows: their traces in the SQLite file, before and after they are sealed.

use std::path::Path;

use pandastack_store::apps::record::{DeploymentRecord, EnvEntry, PreviewRepoRecord, StartSpec};
use pandastack_store::apps::{AppStore, PreviewRepoStore};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionStore, VersionRecord, VersionSpec};
use pandastack_store::installation::{SealedRows, SecretStore};
use pandastack_store::schedules::ScheduleStore;
use pandastack_store::sql::SqlStore;
use pandastack_store::templates::{BuildState, TemplateRecord, TemplateSpec};
use pandastack_store::{
    IdempotencyClaim, IdempotencyKey, IdempotencyOutcome, SnapshotRecord, SnapshotSpecRecord, Store,
    TokenStore,
};
use pandastack_types::api::{
    DeployStatus, HttpTarget, RegistryCredentials, ScheduleAlert, ScheduleTarget, StartBuild,
};
use pandastack_types::link::LinkKey;
use pandastack_types::{SnapshotId, TemplateId};

use super::{apps, closed, functions, new_sandbox, secret, templates, webhooks, ws};

/// Kinds of secrets, by the table that has them. Each is somewhere in the rows that [`fill`] makes.
const KINDS: [&str; 21] = [
    "apps-git-token",
    "apps-deploy-key",
    "apps-webhook-secret",
    "apps-env-value",
    "deployments-start-env",
    "functions-secret",
    "functions-env",
    "functions-dead-letter-url",
    "function-versions-env",
    "preview-repos-env",
    "sandboxes-env",
    "snapshots-env",
    "schedules-header",
    "schedules-body",
    "schedules-alert-url",
    "template-builds-arg",
    "template-builds-registry",
    "template-builds-recipe",
    "webhooks-url",
    "webhooks-secret",
    "idempotency-answer",
];

/// The secret of a kind; the text occurs nowhere else.
fn value(kind: &str) -> String {
    assert!(KINDS.contains(&kind), "{kind}");
    format!("s3cret-{kind}")
}

fn map(kind: &str) -> std::collections::BTreeMap<String, String> {
    [("A".to_owned(), value(kind))].into()
}

fn variable(kind: &str) -> std::collections::BTreeMap<String, EnvEntry> {
    let (scope, stage) = Default::default();
    let entry = EnvEntry { value: value(kind), secret: true, scope, stage, updated_at: now() };
    [("A".to_owned(), entry)].into()
}

/// Makes a row of every kind, and reads each again.
async fn fill(store: &dyn Store) {
    let mut app = apps::new_app("shop");
    app.spec.git_token = Some(value("apps-git-token"));
    app.spec.git_deploy_key = Some(value("apps-deploy-key"));
    app.spec.webhook_secret = Some(value("apps-webhook-secret"));
    app.spec.env = variable("apps-env-value");
    store.insert_app(&app).await.unwrap();
    let mut deployment = DeploymentRecord::queued(&app, "manual", now());
    deployment.spec.start = Some(StartSpec { env: map("deployments-start-env"), ..StartSpec::default() });
    store.insert_deployment(&deployment).await.unwrap();
    let mut function = functions::new_function("f");
    function.spec.secrets = map("functions-secret");
    function.spec.env = map("functions-env");
    function.spec.settings.dead_letter_url = Some(value("functions-dead-letter-url"));
    store.insert_function(&function).await.unwrap();
    let version = VersionRecord {
        function: function.id.clone(),
        version: 0,
        workspace: ws(),
        state: DeployStatus::Building,
        layer_key: None,
        created_at: now(),
        spec: VersionSpec { env: map("function-versions-env"), ..VersionSpec::default() },
    };
    store.insert_version(&version).await.unwrap();
    let env = variable("preview-repos-env");
    let mut change = |repo: &mut PreviewRepoRecord| {
        repo.env.clone_from(&env);
        true
    };
    let repo = 7_i64.try_into().unwrap();
    store.change_preview_repo(&ws(), repo, now(), &mut change).await.unwrap();
    let mut sandbox = new_sandbox();
    sandbox.spec.env = map("sandboxes-env");
    store.insert_sandboxes(std::slice::from_ref(&sandbox), None).await.unwrap();
    let snapshot = SnapshotRecord {
        id: SnapshotId::random(),
        workspace: ws(),
        sandbox: sandbox.id.clone(),
        host: sandbox.host.clone(),
        created_at: now(),
        expires_at: None,
        spec: SnapshotSpecRecord { env: map("snapshots-env"), ..SnapshotSpecRecord::default() },
    };
    store.insert_snapshot(&snapshot, false).await.unwrap();
    let mut schedule = closed::schedule();
    let (headers, body) = (map("schedules-header"), Some(value("schedules-body")));
    schedule.spec.target =
        ScheduleTarget::Http(HttpTarget { url: "http://x/".into(), method: None, headers, body });
    schedule.spec.options.alert =
        Some(ScheduleAlert { url: value("schedules-alert-url"), after_failures: 1 });
    store.insert_schedule(&schedule).await.unwrap();
    let template = TemplateRecord {
        id: TemplateId::random(),
        workspace: ws(),
        name: "t".into(),
        created_at: now(),
        spec: TemplateSpec::default(),
    };
    store.ensure_template(&template).await.unwrap();
    let mut build = templates::build(&template, BuildState::Queued);
    let password = value("template-builds-registry");
    let registry = RegistryCredentials { password, ..RegistryCredentials::default() };
    let (args, registries) = (map("template-builds-arg"), vec![registry]);
    build.spec.request.start = Some(StartBuild { args: args.clone(), ..StartBuild::default() });
    build.spec.start = Some(StartBuild { args, registries, ..StartBuild::default() });
    let dockerfile = value("template-builds-recipe");
    build.spec.recipe = Some(StartBuild { dockerfile, ..StartBuild::default() });
    store.insert_build(&build).await.unwrap();
    let mut webhook = webhooks::new_webhook(&[]);
    webhook.spec.url = value("webhooks-url");
    webhook.spec.secret = value("webhooks-secret");
    store.insert_webhook(&webhook).await.unwrap();
    answer(store).await;
    store.idempotency_finish(&key(), Some((201, value("idempotency-answer").as_bytes()))).await.unwrap();

    assert_eq!(store.app(None, "shop").await.unwrap(), app);
    assert_eq!(store.deployment(&app.id, &deployment.id).await.unwrap(), deployment);
    assert_eq!(store.function(None, &function.id).await.unwrap().spec, function.spec);
    assert_eq!(store.version(&function.id, 1).await.unwrap().spec, version.spec);
    assert_eq!(store.sandbox(None, &sandbox.id).await.unwrap(), sandbox);
    assert_eq!(store.snapshot(&ws(), &snapshot.id).await.unwrap(), snapshot);
    assert_eq!(store.schedule(&ws(), &schedule.id).await.unwrap().spec, schedule.spec);
    assert_eq!(store.build(&ws(), &build.id).await.unwrap(), build);
    assert_eq!(store.webhook(&ws(), &webhook.id).await.unwrap(), webhook);
}

fn key() -> IdempotencyKey {
    IdempotencyKey { workspace: ws(), key: "k".into() }
}

async fn answer(store: &dyn Store) -> IdempotencyOutcome {
    let (at, instance) = (now(), "i".to_owned());
    let claim = IdempotencyClaim { key: key(), fingerprint: vec![1], instance, at, not_before: at };
    let claim = IdempotencyClaim { not_before: jiff::Timestamp::UNIX_EPOCH, ..claim };
    store.idempotency_begin(&claim).await.unwrap()
}

pub(super) async fn every_column_with_secrets_is_sealed(store: &dyn Store) {
    fill(store).await;
    assert_eq!(store.seal_rows().await.unwrap(), SealedRows { rows: 10, sealed: 0 });
    assert_eq!(store.sealed_with().await.unwrap(), Some(1));
    assert_eq!(store.drop_unreadable().await.unwrap(), 0);
}

/// Secrets that the database's files have in plain text.
fn found(path: &Path) -> Vec<&'static str> {
    let beside = |end: &str| std::path::PathBuf::from(format!("{}{end}", path.display()));
    let files = ["", "-wal"].map(|end| std::fs::read(beside(end)).unwrap_or_default());
    let bytes = files.concat();
    assert!(bytes.windows(5).any(|window| window == b"host-"), "rows are in these files");
    KINDS
        .into_iter()
        .filter(|kind| {
            let value = value(kind);
            bytes.windows(value.len()).any(|window| window == value.as_bytes())
        })
        .collect()
}

async fn open(path: &Path, secret: &LinkKey) -> SqlStore {
    let store = SqlStore::sqlite(path, secret).await.unwrap();
    store.ensure_workspace(&ws(), now()).await.unwrap();
    store
}

#[tokio::test]
async fn the_database_file_contains_no_plaintext_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path, &secret()).await;
    fill(&store).await;
    assert!(matches!(answer(&store).await, IdempotencyOutcome::Replay { status: 201, body }
        if body == value("idempotency-answer").as_bytes()));
    assert_eq!(found(&path), [""; 0]);
    store.close().await;
    assert_eq!(found(&path), [""; 0]);
}

/// Writes rows as an earlier version did, by opening every sealed value.
async fn unseal(path: &Path) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let spec = serde_json::json!({ "git_token": value("apps-git-token"), "git_url": "u", "port": 1 });
    let change = "UPDATE apps SET spec = $1";
    sqlx::query(change).bind(spec.to_string()).execute(&pool).await.unwrap();
    let env = serde_json::json!({ "A": { "value": value("preview-repos-env"), "secret": true,
        "updated_at": now().to_string() } });
    sqlx::query("UPDATE preview_repos SET env = $1").bind(env.to_string()).execute(&pool).await.unwrap();
    sqlx::query("DELETE FROM installation WHERE name = 'sealed_with'").execute(&pool).await.unwrap();
    pool.close().await;
}

#[tokio::test]
async fn rows_of_an_earlier_version_are_sealed_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path, &secret()).await;
    fill(&store).await;
    assert_eq!(store.seal_rows().await.unwrap(), SealedRows { rows: 10, sealed: 0 });
    store.close().await;
    unseal(&path).await;
    assert_eq!(found(&path), ["apps-git-token", "preview-repos-env"]);
    let store = open(&path, &secret()).await;
    assert_eq!(store.app(None, "shop").await.unwrap().spec.git_token, Some(value("apps-git-token")));
    assert_eq!(store.seal_rows().await.unwrap(), SealedRows { rows: 10, sealed: 2 });
    assert_eq!(found(&path), [""; 0], "neither in free pages nor in the log");
    assert_eq!(store.seal_rows().await.unwrap(), SealedRows::default());
    assert_eq!(store.app(None, "shop").await.unwrap().spec.git_token, Some(value("apps-git-token")));
    assert_eq!(store.preview_repos(&ws()).await.unwrap()[0].env["A"].value, value("preview-repos-env"));
}

#[tokio::test]
async fn a_rotation_reseals_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let secret = secret();
    let store = open(&path, &secret).await;
    fill(&store).await;
    store.seal_rows().await.unwrap();
    let before = secret.ring();
    let mut ring = secret.ring();
    ring.stage(&[8; 32]).unwrap();
    ring.activate();
    secret.replace(ring);
    let token = async || store.app(None, "shop").await.unwrap().spec.git_token;
    assert_eq!(token().await, Some(value("apps-git-token")), "before it is sealed again");
    assert_eq!(store.seal_rows().await.unwrap(), SealedRows { rows: 10, sealed: 10 });
    assert_eq!(store.sealed_with().await.unwrap(), Some(2));
    assert_eq!(token().await, Some(value("apps-git-token")));
    assert!(matches!(answer(&store).await, IdempotencyOutcome::Replay { .. }));
    store.close().await;
    // The old secret alone opens nothing any more.
    let store = open(&path, &LinkKey::from(before)).await;
    let refused = store.app(None, "shop").await.unwrap_err();
    assert!(pandastack_types::chain(&refused).contains("generation 2"), "{refused:?}");
}

#[tokio::test]
async fn a_lost_key_drops_secrets_but_keeps_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path, &secret()).await;
    fill(&store).await;
    store.close().await;
    let store = open(&path, &LinkKey::new(&[9; 32]).unwrap()).await;
    assert!(store.app(None, "shop").await.is_err());
    assert_eq!(store.drop_unreadable().await.unwrap(), 10);
    let app = store.app(None, "shop").await.unwrap();
    assert!(app.spec.git_token.is_none() && app.spec.env.is_empty() && app.spec.git_url.is_some());
    assert_eq!(store.schedules(&ws()).await.unwrap().len(), 1);
    assert_eq!(store.functions(None).await.unwrap().len(), 1);
    Store::ping(&store).await.unwrap();
}

#[tokio::test]
async fn a_sealed_value_does_not_open_in_another_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path, &secret()).await;
    let (mut rich, poor) = (apps::new_app("rich"), apps::new_app("poor"));
    rich.spec.git_token = Some(value("apps-git-token"));
    store.insert_app(&rich).await.unwrap();
    store.insert_app(&poor).await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let moved = "UPDATE apps SET spec = (SELECT spec FROM apps WHERE name = 'rich') WHERE name = 'poor'";
    sqlx::query(moved).execute(&pool).await.unwrap();
    let refused = store.app(None, "poor").await.unwrap_err();
    assert!(pandastack_types::chain(&refused).contains("moved from another row"), "{refused:?}");
    assert!(store.app(None, "rich").await.is_ok());
}
