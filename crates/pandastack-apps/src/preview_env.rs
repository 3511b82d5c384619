//! Variables of a repository over HTTP. All previews of its apps see them, unless the app sets the same
//! name for previews.
//!
//! They are checked, kept and masked as those of apps are ([`crate::env`]), with scope `preview`. A repository may have some before
//! its previews are turned on, so that the first preview sees them, and keeps them when those are turned off.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::apps::record::PreviewRepoRecord;
use pandastack_store::clock::now;
use pandastack_types::api::{
    AppEnvImported, AppEnvList, AppEnvSet, EnvScope, EnvStage, GithubRepoId, ImportPreviewEnv, SetPreviewEnv,
};
use pandastack_types::{Error, ErrorBody, Result};

use crate::env::{self, Kind};
use crate::preview_repos::RepoPath;
use crate::state::Apps;
use crate::{check, dotenv};

/// Kind of a repository's variable: for previews, in all stages.
fn kind(secret: Option<bool>) -> Kind {
    Kind { secret, scope: Some(EnvScope::Preview), stage: Some(EnvStage::All) }
}

/// Changes a repository, unless `edit` refuses.
async fn change(
    apps: &Apps,
    caller: &Caller,
    id: GithubRepoId,
    mut edit: impl FnMut(&mut PreviewRepoRecord) -> Result<()> + Send,
) -> Result<PreviewRepoRecord> {
    let mut edited = Ok(());
    let mut note = |repo: &mut PreviewRepoRecord| {
        edited = edit(repo);
        edited.is_ok()
    };
    let repo = apps.repos.change_preview_repo(&caller.workspace, id, now(), &mut note).await?;
    edited.map(|()| repo)
}

/// List variables of a repository's previews. Secret values are masked.
#[utoipa::path(get, path = "/v1/repos/{repo}/preview-env", tag = "apps", operation_id = "list_preview_env",
    params(("repo" = GithubRepoId, Path)), responses((status = 200, body = AppEnvList), (status = 400, body = ErrorBody)))]
pub async fn list(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: RepoPath,
) -> ApiResult<Json<AppEnvList>> {
    let repos = apps.repos.preview_repos(&caller.workspace).await?;
    let found = repos.into_iter().find(|repo| repo.id == path.id);
    Ok(Json(env::shown(found.map(|repo| repo.env).unwrap_or_default())))
}

/// Set a variable of a repository's previews. An existing secret stays secret unless the request changes
/// it.
#[utoipa::path(put, path = "/v1/repos/{repo}/preview-env/{key}", tag = "apps", operation_id = "set_preview_env",
    params(("repo" = GithubRepoId, Path), ("key" = String, Path)), request_body = SetPreviewEnv,
    responses((status = 200, body = AppEnvSet), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn set(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: RepoPath,
    JsonBody(wanted): JsonBody<SetPreviewEnv>,
) -> ApiResult<Json<AppEnvSet>> {
    let key = path.second;
    let changed = change(&apps, &caller, path.id, |repo| {
        let entry = kind(wanted.secret).entry(repo.env.get(&key), wanted.value.clone());
        check::put_variable(&mut repo.env, &key, entry)
    });
    let env = changed.await?.env;
    Ok(env::was_set(&env, key)?)
}

/// Remove a variable of a repository's previews.
#[utoipa::path(delete, path = "/v1/repos/{repo}/preview-env/{key}", tag = "apps", operation_id = "delete_preview_env",
    params(("repo" = GithubRepoId, Path), ("key" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: RepoPath) -> ApiResult<StatusCode> {
    let key = path.second;
    change(&apps, &caller, path.id, |repo| match repo.env.remove(&key) {
        Some(_) => Ok(()),
        None => Err(Error::not_found("variable", &key)),
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set several variables of a repository's previews from the text of a `.env` file. Existing secrets stay
/// secret unless the request changes them.
#[utoipa::path(post, path = "/v1/repos/{repo}/preview-env/import", tag = "apps", operation_id = "import_preview_env",
    params(("repo" = GithubRepoId, Path)), request_body = ImportPreviewEnv,
    responses((status = 200, body = AppEnvImported), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn import(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: RepoPath,
    JsonBody(wanted): JsonBody<ImportPreviewEnv>,
) -> ApiResult<Json<AppEnvImported>> {
    let pairs = dotenv::parse(&wanted.dotenv)?;
    let changed = change(&apps, &caller, path.id, |repo| {
        pairs.iter().try_for_each(|pair| {
            let entry = kind(wanted.secret).entry(repo.env.get(&pair.key), pair.value.clone());
            check::put_variable(&mut repo.env, &pair.key, entry).map_err(|error| pair.refused(error))
        })
    });
    let total = changed.await?.env.len();
    Ok(Json(AppEnvImported { imported: pairs.len(), total }))
}
