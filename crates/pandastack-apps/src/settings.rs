//! Settings of an app over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::apps::record::AppSpec;
use pandastack_types::api::{self, AppSettings, CreateSandbox, UpdateApp};
use pandastack_types::{Error, ErrorBody, Result};

use crate::change::change;
use crate::env::Kind;
use crate::path::AppPath;
use crate::reconcile::Initiator;
use crate::state::Apps;
use crate::{check, reconcile, serve, view};
use pandastack_types::api::MASK;

/// Update an app's settings. Instance limits take effect immediately. `template`, `cpu` and `memory_mb`
/// take effect with the next build, other settings with the next deployment or restart.
#[utoipa::path(patch, path = "/v1/apps/{id}", tag = "apps", params(("id" = String, Path)), request_body = UpdateApp,
    responses((status = 200, body = api::App), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn update(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
    JsonBody(wanted): JsonBody<UpdateApp>,
) -> ApiResult<Json<api::App>> {
    let record = path.find_own(&apps, &caller).await?;
    let was = record.spec.clone();
    revised(&apps, &was, wanted.clone())?;
    let mut applied = Ok(());
    let record = change(&apps, &record.id, |record| {
        // Another call may have changed what these settings depend on.
        applied = revised(&apps, &record.spec, wanted.clone()).map(|spec| record.spec = spec);
    })
    .await?;
    applied?;
    apps.activity.polls.notify_one();
    let sleep = |spec: &AppSpec| (spec.idle_timeout_seconds, spec.min_instances);
    if sleep(&record.spec) != sleep(&was) {
        apps.names.notify_all();
        serve::follow_idle(&apps, &record).await;
    }
    if wanted.settings.max_instances.is_some() {
        reconcile::app(&apps, &record, Initiator::User).await?;
        apps.activity.work.notify_one();
    }
    Ok(Json(view::app(&apps, &headers, record).await?))
}

/// An app's settings after an update.
pub(crate) fn revised(apps: &Apps, was: &AppSpec, wanted: UpdateApp) -> Result<AppSpec> {
    let UpdateApp { settings, env, template, cpu, memory_mb } = wanted;
    let mut spec = was.clone();
    check_api_url(apps, &settings)?;
    check::apply(&mut spec, settings)?;
    put_all(&mut spec, env.unwrap_or_default())?;
    if let Some(template) = template.filter(|name| !name.is_empty()) {
        let mut templates = apps.templates.list().into_iter();
        let found = templates.find(|one| one.name == template || one.aliases.contains(&template));
        spec.template = found.ok_or_else(|| Error::not_found("template", &template))?.name;
    }
    // Published clients send 0 for "as the template has it".
    spec.cpu = cpu.or(was.cpu).filter(|cpu| *cpu > 0);
    spec.memory_mb = memory_mb.or(was.memory_mb).filter(|mb| *mb > 0);
    let machine = CreateSandbox { cpu: spec.cpu, memory_mb: spec.memory_mb, ..CreateSandbox::default() };
    pandastack_sandboxes::validate::create(&machine)?;
    if spec.cache.is_some() {
        // Kept before its kind was noted, so of the one that held until now.
        spec.cache_shape.get_or_insert_with(|| was.shape());
    }
    Ok(spec)
}

/// Sets variables. An existing variable keeps its scope and stage. A secret that is sent back
/// masked is not changed, and one that was deleted since it was shown stays deleted.
fn put_all(spec: &mut AppSpec, env: BTreeMap<String, String>) -> Result<()> {
    for (key, value) in env {
        let known = spec.env.get(&key);
        if value == MASK && known.is_none_or(|known| known.secret) {
            continue;
        }
        let entry = Kind::default().entry(known, value);
        check::put_env(spec, &key, entry)?;
    }
    Ok(())
}

/// Refuses an address that this server would not call.
fn check_api_url(apps: &Apps, settings: &AppSettings) -> Result<()> {
    match settings.git_api_url.as_deref() {
        None | Some("") => Ok(()),
        Some(url) => apps.webhooks.check_url("git_api_url", url).map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::EnvEntry;
    use pandastack_store::clock::now;

    #[test]
    fn existing_variables_keep_their_attributes() {
        let entry = |value: &str, secret| EnvEntry {
            value: value.to_owned(),
            secret,
            scope: api::EnvScope::Preview,
            stage: api::EnvStage::Build,
            updated_at: now(),
        };
        let env =
            [("TOKEN", entry("s3cret", true)), ("KEY", entry("old", true)), ("MODE", entry("slow", false))];
        let env = env.map(|(key, entry)| (key.to_owned(), entry)).into();
        let mut spec = AppSpec { env, ..AppSpec::default() };
        let said = [("TOKEN", MASK), ("KEY", "new"), ("MORE", "1"), ("DELETED", MASK)];
        put_all(&mut spec, said.map(|(key, value)| (key.to_owned(), value.to_owned())).into()).unwrap();
        let shown: Vec<_> =
            spec.env.iter().map(|(key, one)| (key.as_str(), one.value.as_str(), one.secret)).collect();
        let expect =
            [("KEY", "new", true), ("MODE", "slow", false), ("MORE", "1", false), ("TOKEN", "s3cret", true)];
        assert_eq!(shown, expect);
        assert_eq!(
            (spec.env["KEY"].scope, spec.env["KEY"].stage),
            (api::EnvScope::Preview, api::EnvStage::Build)
        );
        assert!(put_all(&mut spec, [("A-B".to_owned(), String::new())].into()).is_err());
        let port = put_all(&mut spec, [("PORT".to_owned(), "3000".to_owned())].into()).unwrap_err();
        assert!(port.message.contains("`port`"), "{}", port.message);
    }
}
