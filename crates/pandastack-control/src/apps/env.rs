//! Variables of an app over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_types::ErrorBody;
use pandastack_types::api::{
    AppEnv, AppEnvImported, AppEnvList, AppEnvSet, EnvStage, ImportAppEnv, SetAppEnv,
};

use super::check;
use super::deploy::change;
use super::record::EnvEntry;
use super::routes::OfApp;
use super::view::MASK;
use crate::app::{App, now};
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::JsonBody;

/// Beginnings of variables that builds write into their output.
const BUILD_ONLY: [&str; 4] = ["VITE_", "NEXT_PUBLIC_", "REACT_APP_", "PUBLIC_"];

/// What to know about a variable.
pub(super) fn note(key: &str, stage: EnvStage) -> String {
    let is_for_builds = BUILD_ONLY.iter().any(|start| key.starts_with(start));
    match (stage, is_for_builds) {
        (EnvStage::Run, true) => {
            format!("`{key}` is read by builds, but they do not see it: set it with stage `build` or `all`")
        }
        (EnvStage::Build, _) | (EnvStage::All, true) => format!(
            "`{key}` is read by the build: deploy again for it to take effect, a restart is not enough"
        ),
        (EnvStage::Run | EnvStage::All, false) => {
            "it takes effect with the next deployment or restart".to_owned()
        }
    }
}

/// Variables of an app; secrets are masked.
#[utoipa::path(get, path = "/v1/apps/{id}/env", tag = "apps", params(("id" = String, Path)), responses(
    (status = 200, body = AppEnvList), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
) -> ApiResult<Json<AppEnvList>> {
    let record = of.find(&app, &caller).await?;
    Ok(Json(shown(record.spec.env)))
}

/// Variables as callers see them.
pub(super) fn shown(env: BTreeMap<String, EnvEntry>) -> AppEnvList {
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

/// Set a variable.
#[utoipa::path(put, path = "/v1/apps/{id}/env/{key}", tag = "apps", params(("id" = String, Path), ("key" = String, Path)),
    request_body = SetAppEnv, responses((status = 200, body = AppEnvSet), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn set(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
    JsonBody(wanted): JsonBody<SetAppEnv>,
) -> ApiResult<Json<AppEnvSet>> {
    let (record, key) = (of.find_own(&app, &caller).await?, of.second);
    let SetAppEnv { value, secret, scope, stage } = wanted;
    let entry = EnvEntry { value, secret, scope, stage, updated_at: now() };
    check::put_env(&mut record.spec.clone(), &key, entry.clone())?;
    change(&app, &record.id, |record| {
        record.spec.env.insert(key.clone(), entry.clone());
    })
    .await?;
    let note = Some(note(&key, stage));
    Ok(Json(AppEnvSet { key, secret, scope, stage, note }))
}

/// Remove a variable.
#[utoipa::path(delete, path = "/v1/apps/{id}/env/{key}", tag = "apps", params(("id" = String, Path), ("key" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(State(app): State<Arc<App>>, caller: Caller, of: OfApp) -> ApiResult<StatusCode> {
    let record = of.find_own(&app, &caller).await?;
    if !record.spec.env.contains_key(&of.second) {
        return Err(ApiError::not_found("variable", &of.second));
    }
    change(&app, &record.id, |record| {
        record.spec.env.remove(&of.second);
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set many variables, in the form of a `.env` file.
#[utoipa::path(post, path = "/v1/apps/{id}/env/import", tag = "apps", params(("id" = String, Path)),
    request_body = ImportAppEnv, responses((status = 200, body = AppEnvImported), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn import(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
    JsonBody(wanted): JsonBody<ImportAppEnv>,
) -> ApiResult<Json<AppEnvImported>> {
    let record = of.find_own(&app, &caller).await?;
    let pairs = parse(&wanted.dotenv)?;
    let entry = |value: &str| EnvEntry {
        value: value.to_owned(),
        secret: wanted.secret,
        scope: wanted.scope,
        stage: wanted.stage,
        updated_at: now(),
    };
    let mut trial = record.spec.clone();
    for (key, value) in &pairs {
        check::put_env(&mut trial, key, entry(value))?;
    }
    let changed = change(&app, &record.id, |record| {
        record.spec.env.extend(pairs.iter().map(|(key, value)| (key.clone(), entry(value))));
    })
    .await?;
    Ok(Json(AppEnvImported { imported: pairs.len(), total: changed.spec.env.len() }))
}

/// The pairs of a `.env` file. A later line of the same name wins.
pub(super) fn parse(text: &str) -> ApiResult<Vec<(String, String)>> {
    let mut pairs = Vec::<(String, String)>::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((key, value)) = line.split_once('=') else {
            return Err(ApiError::bad_request(format!(
                "line {number} of `dotenv` is not of the form KEY=value"
            )));
        };
        let (key, value) = (key.trim().to_owned(), unquoted(value.trim()));
        pairs.retain(|(known, _)| *known != key);
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn unquoted(value: &str) -> String {
    let inner = |quote: char| {
        value.strip_prefix(quote).and_then(|rest| rest.split_once(quote)).map(|(inner, _)| inner)
    };
    if let Some(inner) = inner('\'') {
        return inner.to_owned();
    }
    if let Some(inner) = inner('"') {
        return inner.replace("\\n", "\n");
    }
    // Without quotes a comment may follow.
    value.split_once(" #").map_or(value, |(value, _)| value).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::record::AppSpec;

    #[test]
    fn dotenv_lines_are_understood() {
        let text = "# c\nA=1\nexport B = \"x\\ny\" # c\nC='#1'\nD=a b # c\n\nA=2\nE=\n";
        let pairs = parse(text).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("B", "x\ny"), ("C", "#1"), ("D", "a b"), ("A", "2"), ("E", "")]);
        assert!(parse("nonsense").unwrap_err().message.contains("line 1"));
    }

    #[test]
    fn what_a_build_reads_is_said_so() {
        assert!(note("VITE_KEY", EnvStage::All).contains("deploy again"));
        assert!(note("KEY", EnvStage::Build).contains("deploy again"));
        assert!(note("KEY", EnvStage::All).contains("or restart"));
        assert!(note("KEY", EnvStage::Run).contains("or restart"));
        assert!(note("VITE_KEY", EnvStage::Run).contains("do not see it"));
    }

    #[test]
    fn a_variable_is_there_in_its_stage_alone() {
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
