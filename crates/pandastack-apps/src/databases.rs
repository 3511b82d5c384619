//! Attached databases of apps over HTTP; machines get each as a variable.
//!
//! Must hold: a database that is attached cannot be deleted; a preview of a fork never learns of
//! one. [`crate::database_connector`] decides from the same record what a machine reaches.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, JsonBody, Lookup};
use pandastack_store::apps::AppStore;
use pandastack_store::apps::record::{AppRecord, AppSpec, AttachedDatabase};
use pandastack_types::api::{AppDatabase, AttachDatabase, EnvScope, EnvStage};
use pandastack_types::limits::DATABASES_PER_APP_MAX;
use pandastack_types::{DatabaseId, Error, ErrorBody, ErrorCode, Result, WorkspaceId};

use crate::change::change;
use crate::check;
use crate::path::AppPath;
use crate::state::Apps;

/// Variable that holds a database's address unless another is named.
const ENV_DEFAULT: &str = "DATABASE_URL";

/// Attach a database. The app's instances can connect to it immediately. The variable with its connection
/// string is set with the next deployment or restart.
#[utoipa::path(put, path = "/v1/apps/{id}/databases/{database}", tag = "apps", operation_id = "attach_database",
    params(("id" = String, Path), ("database" = DatabaseId, Path)), request_body = AttachDatabase,
    responses((status = 200, body = AppDatabase), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn attach(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    lookup: Lookup,
    path: AppPath,
    JsonBody(wanted): JsonBody<AttachDatabase>,
) -> ApiResult<Json<AppDatabase>> {
    let record = path.find_own(&apps, &caller).await?;
    let database: DatabaseId = lookup.id(&path.second).await?;
    let env = wanted.env.unwrap_or_else(|| ENV_DEFAULT.to_owned());
    check::env_name(&env)?;
    let scope = wanted.scope.unwrap_or(EnvScope::Production);
    let attached = AttachedDatabase { database: database.clone(), scope, build: wanted.build };
    // The mark prevents deletion of the database during this change.
    let _marked = apps.databases.mark(&database)?;
    apps.databases.check(&caller.workspace, &database).await?;
    put(&mut record.spec.clone(), &env, &attached)?;
    let mut is_put = Ok(());
    change(&apps, &record.id, |record| {
        // Another call may have given the variable another meaning since.
        is_put = put(&mut record.spec, &env, &attached);
    })
    .await?;
    is_put?;
    // Open connections check again.
    apps.names.notify_all();
    Ok(Json(AppDatabase { database, env, scope, build: wanted.build }))
}

/// Detach a database. The app's instances lose access immediately. The variable is removed with the next
/// deployment or restart.
#[utoipa::path(delete, path = "/v1/apps/{id}/databases/{database}", tag = "apps", operation_id = "detach_database",
    params(("id" = String, Path), ("database" = DatabaseId, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn detach(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    lookup: Lookup,
    path: AppPath,
) -> ApiResult<StatusCode> {
    let record = path.find_own(&apps, &caller).await?;
    let database: DatabaseId = lookup.id(&path.second).await?;
    if !record.spec.databases.values().any(|one| one.database == database) {
        return Err(Error::not_found("attached database", &path.second).into());
    }
    change(&apps, &record.id, |record| record.spec.databases.retain(|_, one| one.database != database))
        .await?;
    apps.names.notify_all();
    Ok(StatusCode::NO_CONTENT)
}

/// Attaches a database under a variable, replacing an earlier attachment of that variable. A
/// refused attachment changes nothing.
fn put(spec: &mut AppSpec, env: &str, attached: &AttachedDatabase) -> Result<()> {
    let is_other = |one: &&AttachedDatabase| one.database != attached.database;
    if let Some(other) = spec.databases.get(env).filter(is_other) {
        return Err(Error::conflict(format!(
            "`{env}` is already set by database `{}`; choose another `env`",
            other.database
        )));
    }
    if spec.env.contains_key(env) {
        return Err(Error::conflict(format!(
            "the app already has a variable `{env}`; remove it, or choose another `env`"
        )));
    }
    if spec.databases.values().filter(is_other).count() >= DATABASES_PER_APP_MAX {
        let message = format!("an app can have at most {DATABASES_PER_APP_MAX} databases; detach one");
        return Err(Error::new(ErrorCode::QuotaExceeded, message));
    }
    spec.databases.retain(|_, one| one.database != attached.database);
    spec.databases.insert(env.to_owned(), attached.clone());
    Ok(())
}

/// Name of an app of a workspace that a database is attached to.
pub async fn attached_app(
    store: &dyn AppStore,
    workspace: &WorkspaceId,
    database: &DatabaseId,
) -> Result<Option<String>> {
    let has = |app: &AppRecord| {
        !app.spec.deleting && app.spec.databases.values().any(|one| one.database == *database)
    };
    Ok(store.apps(Some(workspace)).await?.into_iter().find(has).map(|app| app.name))
}

/// As clients see them.
pub(crate) fn shown(spec: &AppSpec) -> Vec<AppDatabase> {
    let one = |(env, one): (&String, &AttachedDatabase)| AppDatabase {
        database: one.database.clone(),
        env: env.clone(),
        scope: one.scope,
        build: one.build,
    };
    spec.databases.iter().map(one).collect()
}

/// Connection strings that the machines of an app get, by variable.
pub(crate) async fn urls(apps: &Apps, app: &AppRecord, stage: EnvStage) -> Result<BTreeMap<String, String>> {
    let mut urls = BTreeMap::new();
    for (env, one) in app.spec.seen_databases().filter(|(_, one)| stage == EnvStage::Run || one.build) {
        urls.insert(env.clone(), apps.databases.url(&app.workspace, &one.database).await?);
    }
    Ok(urls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::{EnvEntry, PullSpec};
    use pandastack_store::clock::now;

    fn attached(id: &str, scope: EnvScope) -> AttachedDatabase {
        AttachedDatabase { database: id.parse().unwrap(), scope, build: false }
    }

    #[test]
    fn a_database_has_one_uniquely_named_variable() {
        let mut spec = AppSpec::default();
        let taken = EnvEntry {
            value: "v".into(),
            secret: false,
            scope: EnvScope::All,
            stage: Default::default(),
            updated_at: now(),
        };
        spec.env.insert("TAKEN".into(), taken);
        let one = attached("d1", EnvScope::Production);
        put(&mut spec, "DATABASE_URL", &one).unwrap();
        put(&mut spec, "MAIN_URL", &one).unwrap();
        assert_eq!(spec.databases.keys().collect::<Vec<_>>(), ["MAIN_URL"], "it moved");
        let two = attached("d2", EnvScope::All);
        let before = spec.clone();
        assert!(put(&mut spec, "MAIN_URL", &two).unwrap_err().message.contains("d1"));
        assert!(put(&mut spec, "TAKEN", &two).unwrap_err().message.contains("already has a variable"));
        assert!(put(&mut spec, "TAKEN", &one).is_err());
        assert_eq!(spec, before, "what is refused changes nothing");
        for at in 1..DATABASES_PER_APP_MAX {
            put(&mut spec, &format!("URL_{at}"), &attached(&format!("e{at}"), EnvScope::All)).unwrap();
        }
        assert_eq!(put(&mut spec, "MORE", &two).unwrap_err().code, ErrorCode::QuotaExceeded);
    }

    #[test]
    fn previews_see_preview_databases_and_forks_see_none() {
        let seen = |pull: Option<PullSpec>| {
            let mut spec = AppSpec { pull, ..AppSpec::default() };
            for (env, scope) in
                [("ALL", EnvScope::All), ("LIVE", EnvScope::Production), ("TRIAL", EnvScope::Preview)]
            {
                put(&mut spec, env, &attached(&env.to_lowercase(), scope)).unwrap();
            }
            spec.seen_databases().map(|(env, _)| env.clone()).collect::<Vec<_>>()
        };
        assert_eq!(seen(None), ["ALL", "LIVE"]);
        assert_eq!(seen(Some(PullSpec::default())), ["ALL", "TRIAL"]);
        assert!(seen(Some(PullSpec { fork: true, ..PullSpec::default() })).is_empty());
    }
}
