//! GitHub repositories with previews: which apps belong to one, and enabling or disabling previews for
//! all of them.
//!
//! A repository's setting is copied to its apps when it is set: `previews` of an app is where it
//! counts. The latest setting wins, whether of the repository or of an app
//! ([`AppSpec::previews_said_at`]). An app whose repository becomes known later, by its first
//! delivery, follows the repository unless the app was configured since.
//!
//! Must hold: an app belongs to one repository at most; an id from a signed delivery counts more
//! than a name, since names change hands; rows belong to a workspace, and so do the apps that they
//! affect.
//!
//! Left to others: variables of a repository ([`crate::preview_env`]), and what previews see of them ([`crate::previews`]).

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, RawPathParams, State};
use http::StatusCode;
use http::request::Parts;
use pandastack_rest::{ApiError, ApiResult, Caller, JsonBody};
use pandastack_store::apps::record::{AppRecord, AppSpec, PreviewRepoRecord};
use pandastack_store::clock::now;
use pandastack_types::api::{
    AppPreviews, EnablePreviewRepo, GitHost, GithubRepoId, PreviewRepo, PreviewRepoList,
};
use pandastack_types::{Error, ErrorBody, ErrorCode, Result, WorkspaceId};
use serde::Deserialize;

use crate::change::change;
use crate::state::Apps;
use crate::{commit_status, git};

/// Characters of an owner or a name; GitHub's own limits are 39 and 100.
const NAME_CHARS_MAX: usize = 100;

/// The repository of a path, and the rest of the path.
pub struct RepoPath {
    pub(crate) id: GithubRepoId,
    pub(crate) second: String,
}

impl<S: Send + Sync> FromRequestParts<S> for RepoPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = |_| Error::not_found("repository", "?");
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(unknown)?;
        let mut values = params.iter().map(|(_, value)| value.to_owned());
        let (id, second) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        // Not a 404: a client that sends a name instead of the number gets an error that names the
        // problem.
        let id = id.parse::<GithubRepoId>().map_err(|error| Error::bad_request(error.to_string()))?;
        Ok(Self { id, second })
    }
}

fn shown(repo: PreviewRepoRecord) -> PreviewRepo {
    PreviewRepo {
        github_repo_id: repo.id,
        repo_full_name: repo.full_name.unwrap_or_default(),
        enabled: repo.enabled_at.is_some(),
    }
}

/// List repositories with previews enabled, oldest first.
#[utoipa::path(get, path = "/v1/preview-repos", tag = "apps", operation_id = "list_preview_repos",
    responses((status = 200, body = PreviewRepoList)))]
pub async fn list(State(apps): State<Arc<Apps>>, caller: Caller) -> ApiResult<Json<PreviewRepoList>> {
    let repos = apps.repos.preview_repos(&caller.workspace).await?.into_iter();
    let enabled = repos.filter(|repo| repo.enabled_at.is_some());
    Ok(Json(PreviewRepoList { repos: enabled.map(shown).collect() }))
}

/// Enable previews for a repository. Its apps whose `previews` is `off` change to `branches`.
#[utoipa::path(post, path = "/v1/preview-repos", tag = "apps", operation_id = "enable_preview_repo",
    request_body = EnablePreviewRepo, responses((status = 200, body = PreviewRepo), (status = 400, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub async fn enable(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    JsonBody(wanted): JsonBody<EnablePreviewRepo>,
) -> ApiResult<Json<PreviewRepo>> {
    let full_name = wanted.repo_full_name.filter(|name| !name.is_empty());
    full_name.as_deref().map_or(Ok(()), check_full_name)?;
    let owner = Arc::clone(&apps);
    let turned_on = apps.background.owned(async move {
        turn_on(&owner, &caller.workspace, wanted.github_repo_id, full_name.as_deref()).await
    });
    Ok(turned_on.await.map(|repo| Json(shown(repo)))?)
}

/// Disable previews for a repository: its apps' `previews` changes to `off`. Open previews stay until their
/// pull request is closed.
#[utoipa::path(delete, path = "/v1/preview-repos/{repo}", tag = "apps", operation_id = "disable_preview_repo",
    params(("repo" = GithubRepoId, Path)), responses((status = 204), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn disable(State(apps): State<Arc<Apps>>, caller: Caller, path: RepoPath) -> ApiResult<StatusCode> {
    let owner = Arc::clone(&apps);
    apps.background.owned(async move { turn_off(&owner, &caller.workspace, path.id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stores the setting first: if this is interrupted later, the same call repairs it.
async fn turn_on(
    apps: &Apps,
    workspace: &WorkspaceId,
    id: GithubRepoId,
    full_name: Option<&str>,
) -> Result<PreviewRepoRecord> {
    let at = now();
    let mut enable = |repo: &mut PreviewRepoRecord| {
        repo.enabled_at = Some(at);
        if let Some(name) = full_name {
            repo.full_name = Some(name.to_owned());
        }
        true
    };
    let repo = apps.repos.change_preview_repo(workspace, id, at, &mut enable).await?;
    let repos = apps.repos.preview_repos(workspace).await?;
    for one in apps_of(apps, workspace, &repos, id).await? {
        if follow(&mut one.spec.clone(), &repos) {
            let settle = |spec: &mut AppSpec| {
                follow(spec, &repos);
            };
            change_there(apps, &one, settle).await?;
        }
    }
    Ok(repo)
}

/// Forgets it last, for the same reason.
async fn turn_off(apps: &Apps, workspace: &WorkspaceId, id: GithubRepoId) -> Result<()> {
    let repos = apps.repos.preview_repos(workspace).await?;
    if !repos.iter().any(|repo| repo.id == id && repo.enabled_at.is_some()) {
        return Err(Error::not_found("repository with previews", &id.to_string()));
    }
    for one in apps_of(apps, workspace, &repos, id).await? {
        change_there(apps, &one, |spec| spec.set_previews(AppPreviews::Off, now())).await?;
    }
    let mut disable = |repo: &mut PreviewRepoRecord| repo.enabled_at.take().is_some();
    apps.repos.change_preview_repo(workspace, id, now(), &mut disable).await?;
    Ok(())
}

/// Changes the settings of an app, unless it has been deleted.
async fn change_there(apps: &Apps, one: &AppRecord, mut settle: impl FnMut(&mut AppSpec)) -> Result<()> {
    match change(apps, &one.id, |record| settle(&mut record.spec)).await {
        Err(error) if error.code != ErrorCode::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Apps of a repository.
async fn apps_of(
    apps: &Apps,
    workspace: &WorkspaceId,
    repos: &[PreviewRepoRecord],
    id: GithubRepoId,
) -> Result<Vec<AppRecord>> {
    let mut all = apps.store.apps(Some(workspace)).await?;
    all.retain(|one| {
        let is_app = one.preview_of.is_none() && !one.spec.deleting;
        is_app && repo_of(repos, &one.spec).is_some_and(|repo| repo.id == id)
    });
    Ok(all)
}

/// The repository that an app is of, among those of its workspace, oldest first.
pub(crate) fn repo_of<'a>(repos: &'a [PreviewRepoRecord], app: &AppSpec) -> Option<&'a PreviewRepoRecord> {
    if let Some(id) = app.github_repo_id {
        return repos.iter().find(|repo| repo.id == id);
    }
    if commit_status::host_of(app).is_some_and(|host| host != GitHost::Github) {
        return None;
    }
    let name = git::full_name(app)?;
    let is_named = |repo: &&PreviewRepoRecord| {
        repo.full_name.as_ref().is_some_and(|known| known.eq_ignore_ascii_case(&name))
    };
    // Of two that were said to have it, the newer one has it now.
    repos.iter().rfind(is_named)
}

/// Turns an app's previews on if its repository's are, and the app itself was not configured since. Returns
/// whether it did.
fn follow(app: &mut AppSpec, repos: &[PreviewRepoRecord]) -> bool {
    let Some(at) = repo_of(repos, app).and_then(|repo| repo.enabled_at) else { return false };
    let follows = app.previews == AppPreviews::Off && app.previews_said_at.is_none_or(|said| said <= at);
    if follows {
        app.set_previews(AppPreviews::Branches, at);
    }
    follows
}

/// The repository of a delivery.
#[derive(Deserialize)]
struct RepositoryPayload {
    repository: RepositoryIdentity,
}

#[derive(Deserialize)]
struct RepositoryIdentity {
    id: GithubRepoId,
    full_name: Option<String>,
}

/// Repository id from a delivery, if it is new for the app. Many repositories may share one
/// webhook, such as an organization's: once an id is known, only a repository with the app's full
/// name may change it.
fn repo_id_from(app: &AppSpec, payload: &[u8]) -> Option<GithubRepoId> {
    app.git_url.as_ref()?;
    let RepositoryIdentity { id, full_name } =
        serde_json::from_slice::<RepositoryPayload>(payload).ok()?.repository;
    let is_named =
        full_name.zip(git::full_name(app)).is_some_and(|(told, own)| told.eq_ignore_ascii_case(&own));
    (app.github_repo_id.is_none() || is_named && app.github_repo_id != Some(id)).then_some(id)
}

/// Records the repository id of a GitHub delivery, if the delivery has a new one. Only for
/// deliveries with a valid proof.
pub(crate) async fn note(apps: &Apps, record: AppRecord, payload: &[u8]) -> Result<AppRecord> {
    let Some(id) = repo_id_from(&record.spec, payload) else { return Ok(record) };
    let repos = apps.repos.preview_repos(&record.workspace).await?;
    change(apps, &record.id, |record| {
        record.spec.github_repo_id = Some(id);
        follow(&mut record.spec, &repos);
    })
    .await
}

fn check_full_name(text: &str) -> Result<()> {
    let is_name = |part: &str| {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (1..=NAME_CHARS_MAX).contains(&part.len()) && part.chars().all(good)
    };
    if text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
        return Ok(());
    }
    let message = "`repo_full_name` must be an owner and a repository name, such as me/shop";
    Err(Error::bad_request(message))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn repo(id: i64, name: &str, enabled_at: Option<i64>) -> PreviewRepoRecord {
        PreviewRepoRecord {
            full_name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            enabled_at: enabled_at.map(at),
            ..PreviewRepoRecord::new(id.try_into().unwrap(), at(id))
        }
    }

    fn app(url: &str, id: Option<i64>) -> AppSpec {
        AppSpec {
            git_url: Some(url.to_owned()),
            github_repo_id: id.map(|id| id.try_into().unwrap()),
            ..AppSpec::default()
        }
    }

    #[test]
    fn an_app_matches_a_repository_by_id_or_name() {
        let repos = [repo(1, "me/shop", None), repo(2, "", None), repo(3, "Me/Renamed", None)];
        let found = |spec: AppSpec| repo_of(&repos, &spec).map(|repo| i64::from(repo.id));
        assert_eq!(found(app("https://github.com/me/shop.git", None)), Some(1));
        assert_eq!(found(app("git@github.com:ME/renamed", None)), Some(3));
        assert_eq!(found(app("https://ghe.example/me/shop", None)), Some(1), "a server of one's own");
        assert_eq!(found(app("https://github.com/me/other", None)), None);
        assert_eq!(found(app("https://github.com/me/shop", Some(2))), Some(2), "what was told counts more");
        assert_eq!(found(app("https://github.com/me/shop", Some(4))), None, "the name is another's by now");
        for elsewhere in ["https://gitlab.com/me/shop", "https://codeberg.org/me/shop"] {
            assert_eq!(found(app(elsewhere, None)), None, "{elsewhere}");
        }
        let seen =
            AppSpec { git_host_seen: Some(GitHost::Gitea), ..app("https://git.example/me/shop", None) };
        assert_eq!(found(seen), None);
        let newer = [repo(1, "me/shop", None), repo(2, "me/shop", None)];
        let found = repo_of(&newer, &app("https://github.com/me/shop", None)).map(|repo| i64::from(repo.id));
        assert_eq!(found, Some(2), "it was created again under the old name");
    }

    #[test]
    fn other_repositories_do_not_take_over_an_app() {
        let url = "https://github.com/me/shop";
        let told = |spec: &AppSpec, id: i64, name: &str| {
            let payload = serde_json::json!({"repository": {"id": id, "full_name": name}}).to_string();
            repo_id_from(spec, payload.as_bytes()).map(i64::from)
        };
        assert_eq!(told(&app(url, None), 7, "Me/Shop"), Some(7));
        assert_eq!(told(&app(url, None), 7, "me/renamed"), Some(7));
        assert_eq!(told(&app(url, Some(7)), 7, "me/shop"), None, "no news");
        assert_eq!(told(&app(url, Some(7)), 8, "me/other"), None);
        assert_eq!(told(&app(url, Some(7)), 8, "me/shop"), Some(8), "it was created again");
        assert_eq!(told(&AppSpec::default(), 7, "me/shop"), None);
        for odd in ["", "{}", r#"{"repository":{}}"#, r#"{"repository":{"id":0}}"#] {
            assert_eq!(super::repo_id_from(&app(url, None), odd.as_bytes()), None, "{odd}");
        }
    }

    #[test]
    fn the_latest_preview_setting_applies() {
        use AppPreviews::{All, Branches, Off};
        for (previews, said, enabled, expect) in [
            (Off, None, Some(5), Branches),
            (Off, Some(4), Some(5), Branches),
            (Off, Some(6), Some(5), Off),
            (Off, Some(4), None, Off),
            (All, Some(4), Some(5), All),
            (Branches, None, Some(5), Branches),
        ] {
            let mut spec = AppSpec {
                previews,
                previews_said_at: said.map(at),
                ..app("https://github.com/me/shop", None)
            };
            let changed = follow(&mut spec, &[repo(1, "me/shop", enabled)]);
            assert_eq!((spec.previews, changed), (expect, expect != previews), "{said:?} {enabled:?}");
        }
    }

    #[test]
    fn full_names_have_two_parts() {
        for good in ["me/shop", "Me-2/shop.js", "a/_"] {
            assert!(check_full_name(good).is_ok(), "{good}");
        }
        let long = format!("me/{}", "a".repeat(NAME_CHARS_MAX + 1));
        for bad in ["shop", "/shop", "me/", "me/a/b", "me shop/a", "https://github.com/me/shop", &long] {
            assert!(check_full_name(bad).is_err(), "{bad}");
        }
    }
}
