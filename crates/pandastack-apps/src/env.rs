//! Variables of an app over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::apps::record::{AppRecord, AppSpec, EnvEntry};
use pandastack_store::clock::now;
use pandastack_types::api::{
    AppEnv, AppEnvImported, AppEnvList, AppEnvSet, EnvScope, EnvStage, ImportAppEnv, SetAppEnv,
};
use pandastack_types::{Error, ErrorBody, Result};

use crate::change::change;
use crate::path::AppPath;
use crate::state::Apps;
use crate::{check, dotenv};
use pandastack_types::api::MASK;

/// Beginnings of variables that builds write into their output.
const BUILD_ONLY: [&str; 4] = ["VITE_", "NEXT_PUBLIC_", "REACT_APP_", "PUBLIC_"];

/// Note for the user on when a variable takes effect.
pub(crate) fn note(key: &str, stage: EnvStage) -> String {
    let is_for_builds = BUILD_ONLY.iter().any(|start| key.starts_with(start));
    match (stage, is_for_builds) {
        (EnvStage::Run, true) => {
            format!("builds read `{key}`, but it is not set for builds; set it with stage `build` or `all`")
        }
        (EnvStage::Build, _) | (EnvStage::All, true) => {
            format!("the build reads `{key}`; deploy again to apply it, because a restart is not enough")
        }
        (EnvStage::Run | EnvStage::All, false) => {
            format!("`{key}` takes effect with the next deployment or restart")
        }
    }
}

/// List an app's variables. Secret values are masked.
#[utoipa::path(get, path = "/v1/apps/{id}/env", tag = "apps", params(("id" = String, Path)), responses(
    (status = 200, body = AppEnvList), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<Json<AppEnvList>> {
    let record = path.find(&apps, &caller).await?;
    Ok(Json(shown(record.spec.env)))
}

/// Variables as callers see them.
pub(crate) fn shown(env: BTreeMap<String, EnvEntry>) -> AppEnvList {
    let shown = |(key, entry): (String, EnvEntry)| AppEnv {
        key,
        value: if entry.secret { MASK.to_owned() } else { entry.value },
        secret: entry.secret,
        scope: entry.scope,
        stage: entry.stage,
        updated_at: entry.updated_at,
    };
    AppEnvList { env: env.into_iter().map(shown).collect() }
}

/// Properties of a variable in a request, other than its value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) secret: Option<bool>,
    pub(crate) scope: Option<EnvScope>,
    pub(crate) stage: Option<EnvStage>,
}

impl Kind {
    /// A variable with a new value. Absent fields keep their values, and a secret stays secret
    /// until it is removed. A new variable is plain, in the default scope and stage.
    pub(crate) fn entry(self, known: Option<&EnvEntry>, value: String) -> EnvEntry {
        EnvEntry {
            value,
            // Published clients say `false` of every variable that they are not told to hide.
            secret: known.is_some_and(|known| known.secret) || self.secret.unwrap_or_default(),
            scope: self.scope.or(known.map(|known| known.scope)).unwrap_or_default(),
            stage: self.stage.or(known.map(|known| known.stage)).unwrap_or_default(),
            updated_at: now(),
        }
    }
}

/// Changes variables of an app; none, if `put` refuses any of them.
async fn change_env(
    apps: &Apps,
    record: &AppRecord,
    put: impl Fn(&mut AppSpec) -> Result<()> + Send,
) -> Result<AppRecord> {
    // Looked at first, so that what is refused does not count as a change.
    put(&mut record.spec.clone())?;
    let mut done = Ok(());
    let changed = change(apps, &record.id, |record| {
        // Another call may have changed what this depends on.
        let mut spec = record.spec.clone();
        done = put(&mut spec).map(|()| record.spec = spec);
    })
    .await?;
    done.map(|()| changed)
}

/// Answer to setting a variable, which is among these now.
pub(crate) fn was_set(env: &BTreeMap<String, EnvEntry>, key: String) -> Result<Json<AppEnvSet>> {
    // A concurrent request may have removed it.
    let entry = env.get(&key).ok_or_else(|| Error::not_found("variable", &key))?;
    let EnvEntry { secret, scope, stage, .. } = *entry;
    let note = Some(note(&key, stage));
    Ok(Json(AppEnvSet { key, secret, scope, stage, note }))
}

/// Set a variable. An existing variable keeps its secrecy, scope and stage unless the request changes them.
#[utoipa::path(put, path = "/v1/apps/{id}/env/{key}", tag = "apps", params(("id" = String, Path), ("key" = String, Path)),
    request_body = SetAppEnv, responses((status = 200, body = AppEnvSet), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn set(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    JsonBody(wanted): JsonBody<SetAppEnv>,
) -> ApiResult<Json<AppEnvSet>> {
    let (record, key) = (path.find_own(&apps, &caller).await?, path.second);
    let SetAppEnv { value, secret, scope, stage } = wanted;
    let kind = Kind { secret, scope, stage };
    let put = |spec: &mut AppSpec| {
        let entry = kind.entry(spec.env.get(&key), value.clone());
        check::put_env(spec, &key, entry)
    };
    let changed = change_env(&apps, &record, put).await?;
    Ok(was_set(&changed.spec.env, key)?)
}

/// Remove a variable.
#[utoipa::path(delete, path = "/v1/apps/{id}/env/{key}", tag = "apps", params(("id" = String, Path), ("key" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: AppPath) -> ApiResult<StatusCode> {
    let record = path.find_own(&apps, &caller).await?;
    if !record.spec.env.contains_key(&path.second) {
        return Err(Error::not_found("variable", &path.second).into());
    }
    change(&apps, &record.id, |record| {
        record.spec.env.remove(&path.second);
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set several variables from the text of a `.env` file. Existing variables keep their secrecy, scope and
/// stage unless the request changes them.
#[utoipa::path(post, path = "/v1/apps/{id}/env/import", tag = "apps", params(("id" = String, Path)),
    request_body = ImportAppEnv, responses((status = 200, body = AppEnvImported), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn import(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    JsonBody(wanted): JsonBody<ImportAppEnv>,
) -> ApiResult<Json<AppEnvImported>> {
    let record = path.find_own(&apps, &caller).await?;
    let ImportAppEnv { dotenv, secret, scope, stage } = wanted;
    let (pairs, kind) = (dotenv::parse(&dotenv)?, Kind { secret, scope, stage });
    let put = |spec: &mut AppSpec| {
        pairs.iter().try_for_each(|pair| {
            let entry = kind.entry(spec.env.get(&pair.key), pair.value.clone());
            check::put_env(spec, &pair.key, entry).map_err(|error| pair.refused(error))
        })
    };
    let changed = change_env(&apps, &record, put).await?;
    Ok(Json(AppEnvImported { imported: pairs.len(), total: changed.spec.env.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_updated_variable_keeps_unspecified_attributes() {
        let known = EnvEntry {
            value: "old".into(),
            secret: true,
            scope: EnvScope::Preview,
            stage: EnvStage::Run,
            updated_at: now(),
        };
        let check = |said: &str, known: Option<&EnvEntry>, expect: (bool, EnvScope, EnvStage)| {
            let SetAppEnv { value, secret, scope, stage } = serde_json::from_str(said).unwrap();
            let entry = Kind { secret, scope, stage }.entry(known, value);
            assert_eq!((entry.secret, entry.scope, entry.stage), expect, "{said}");
            assert_eq!(entry.value, "new");
        };
        let (all, as_it_is) =
            ((false, EnvScope::All, EnvStage::All), (true, EnvScope::Preview, EnvStage::Run));
        check(r#"{"value":"new"}"#, None, all);
        check(r#"{"value":"new"}"#, Some(&known), as_it_is);
        check(r#"{"value":"new","secret":true}"#, None, (true, EnvScope::All, EnvStage::All));
        check(r#"{"value":"new","secret":null,"scope":null}"#, Some(&known), as_it_is);
        let plain = r#"{"value":"new","secret":false,"scope":"all"}"#;
        check(plain, Some(&known), (true, EnvScope::All, EnvStage::Run));
        check(plain, None, all);
        check(r#"{"value":"new","stage":"all"}"#, Some(&known), (true, EnvScope::Preview, EnvStage::All));
    }

    #[test]
    fn variable_notes_tell_whether_to_deploy_again() {
        assert!(note("VITE_KEY", EnvStage::All).contains("deploy again"));
        assert!(note("KEY", EnvStage::Build).contains("deploy again"));
        assert!(note("KEY", EnvStage::All).contains("or restart"));
        assert!(note("KEY", EnvStage::Run).contains("or restart"));
        assert!(note("VITE_KEY", EnvStage::Run).contains("not set for builds"));
    }

    #[test]
    fn a_variable_is_visible_only_in_its_stage() {
        let entry = |stage| EnvEntry {
            value: "v".into(),
            secret: true,
            scope: Default::default(),
            stage,
            updated_at: now(),
        };
        let env = EnvStage::EACH.map(|stage| (stage.as_str().to_owned(), entry(stage)));
        let spec = AppSpec { env: env.into(), ..AppSpec::default() };
        let keys = |stage| spec.env_values(stage).into_keys().collect::<Vec<_>>();
        assert_eq!(keys(EnvStage::Build), ["all", "build"]);
        assert_eq!(keys(EnvStage::Run), ["all", "run"]);
        let old = r#"{"value":"v","updated_at":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(serde_json::from_str::<EnvEntry>(old).unwrap().stage, EnvStage::All);
    }
}
