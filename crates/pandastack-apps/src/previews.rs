//! Previews: deployments of pull requests, each at its own address.
//!
//! A preview is an app whose record names the one that it belongs to. So the code for apps builds,
//! serves, recovers and deletes it and puts it to sleep, in separate machines. Its settings are its
//! app's current ones ([`crate::preview_settings`]), over the variables of its repository
//! ([`crate::preview_repos`]); only the pull request is its own.
//!
//! ```text
//!   opened, new commits --> its record is made or changed --> a deployment, queued
//!   closed --> its record is marked --> machines, then rows deleted (crate::removal)
//! ```
//!
//! Must hold: a preview of a fork never sees a secret, whether a variable, the repository's token,
//! or data on a machine that had them; no preview starts from its app's installed dependencies,
//! since that machine had production's variables; a late delivery neither reopens a preview that
//! was closed after it, nor closes one that was reopened after it; a preview that is reopened
//! during its removal is created again after it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use pandastack_rest::{ApiResult, Caller};
use pandastack_store::StoreError;
use pandastack_store::apps::record::{AppRecord, AppSpec, DeploymentRecord, PullSpec};
use pandastack_store::clock::now;
use pandastack_types::api::{self, HookAnswer, Items};
use pandastack_types::limits::CLOSED_PULLS_KEPT;
use pandastack_types::{Error, ErrorBody, Result};

use crate::change::change;
use crate::delivery::delivery;
use crate::path::AppPath;
use crate::preview_name::name_of;
use crate::pulls::{Change, Pull};
use crate::queue::queued;
use crate::state::Apps;
use crate::{removal, view};

/// Trigger of a preview's deployment.
const TRIGGER: &str = "pull_request";

/// Carries out the event of a pull request.
pub(crate) async fn take(
    apps: &Arc<Apps>,
    app: &AppRecord,
    pull: Pull,
    headers: &HeaderMap,
) -> Result<(StatusCode, HookAnswer)> {
    let answer = HookAnswer { deployment_id: None, preview: Some(name_of(app, pull.number)), ignored: None };
    let ignored = |why: &str| HookAnswer { preview: None, ignored: Some(why.to_owned()), ..answer.clone() };
    if pull.change == Change::Closed {
        return Ok(match close(apps, app, &pull).await? {
            CloseOutcome::Going => (StatusCode::ACCEPTED, answer),
            CloseOutcome::Late => {
                (StatusCode::OK, ignored("a newer change of the pull request is already known"))
            }
            CloseOutcome::NotThere => (StatusCode::OK, ignored("the pull request has no preview")),
        });
    }
    let closed_at = app.spec.closed_pulls.get(&pull.number);
    let late = closed_at.zip(pull.at).is_some_and(|(closed_at, at)| at <= *closed_at);
    if late && pull.change != Change::Reopened {
        return Ok((StatusCode::OK, ignored("the pull request was closed after this")));
    }
    let Some(preview) = ensure(apps, app, &pull).await? else {
        return Ok((StatusCode::OK, ignored("a newer change of the pull request is already known")));
    };
    let mut new = DeploymentRecord::queued(&preview, TRIGGER, now());
    new.spec.git_ref = Some(pull.commit.clone());
    new.spec.git_commit = Some(pull.commit);
    new.spec.address = Some(apps.address(headers, &preview.name));
    new.spec.delivery = delivery(headers);
    if !apps.store.insert_deployment_unless(&new, &|all| new.is_delivered(all)).await? {
        return Ok((StatusCode::OK, ignored("this delivery was already processed")));
    }
    let (status, Json(deployment)) = queued(apps, new);
    Ok((status, HookAnswer { deployment_id: Some(deployment.id), ..answer }))
}

/// The preview of a pull request, made or brought up to date. `None` if it knows of a newer change.
async fn ensure(apps: &Arc<Apps>, app: &AppRecord, pull: &Pull) -> Result<Option<AppRecord>> {
    let name = name_of(app, pull.number);
    let found = match apps.store.app(None, &name).await {
        Ok(found) => found,
        Err(StoreError::NotFound { .. }) => {
            let new = new_preview(app, name.clone(), pull);
            match apps.store.insert_app(&new).await {
                Ok(()) => {
                    apps.names.notify_all();
                    return Ok(Some(new));
                }
                // Another delivery was faster by a moment.
                Err(StoreError::Exists { .. }) => apps.store.app(None, &name).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    if found.preview_of.as_ref() != Some(&app.id) {
        let message =
            format!("the name `{name}` is used by another app; delete that app to create this preview");
        return Err(Error::conflict(message));
    }
    if found.spec.deleting {
        // Its host tells of this once: a refusal would leave a pull request that is open without a preview.
        removal::wait(apps, &found).await?;
        let app = apps.store.app(None, app.id.as_str()).await?;
        let closed_at = app.spec.closed_pulls.get(&pull.number);
        if app.spec.deleting || closed_at.zip(pull.at).is_some_and(|(closed_at, at)| at < *closed_at) {
            return Ok(None);
        }
        return Box::pin(ensure(apps, &app, pull)).await;
    }
    let changed = change(apps, &found.id, |record| note_pull(&mut record.spec, pull)).await?;
    let is_newest = changed.spec.pull.as_ref().is_some_and(|known| known.commit == pull.commit);
    Ok(is_newest.then_some(changed))
}

/// Records the state of a pull request, unless something newer is known.
fn note_pull(spec: &mut AppSpec, pull: &Pull) {
    if is_newer_known(spec, pull) {
        return;
    }
    let known = spec.pull.clone().unwrap_or_default();
    // Dependencies installed while it was trusted are not for a fork.
    if pull.fork && !known.fork {
        (spec.cache, spec.cache_shape) = (None, None);
    }
    spec.pull = Some(PullSpec { fork: pull.fork || known.fork, ..pull_spec(pull) });
}

fn new_preview(app: &AppRecord, name: String, pull: &Pull) -> AppRecord {
    let spec = AppSpec { pull: Some(pull_spec(pull)), ..AppSpec::default() };
    AppRecord { preview_of: Some(app.id.clone()), ..AppRecord::new(app.workspace.clone(), name, spec, now()) }
}

fn pull_spec(pull: &Pull) -> PullSpec {
    PullSpec {
        number: pull.number,
        title: pull.title.clone(),
        branch: pull.branch.clone(),
        url: pull.url.clone(),
        commit: pull.commit.clone(),
        fork: pull.fork,
        told_at: pull.at,
    }
}

/// The result of a delivery that says that a pull request is closed.
enum CloseOutcome {
    /// The preview is being removed.
    Going,
    /// The pull request changed after the delivery, so it is open.
    Late,
    /// The pull request has no preview.
    NotThere,
}

/// Records that a pull request is closed and begins to remove its preview.
async fn close(apps: &Arc<Apps>, app: &AppRecord, pull: &Pull) -> Result<CloseOutcome> {
    let at = pull.at.unwrap_or_else(now);
    change(apps, &app.id, |record| note_closed(&mut record.spec, pull.number, at)).await?;
    let preview = match apps.store.app(None, &name_of(app, pull.number)).await {
        Ok(found) if found.preview_of.as_ref() == Some(&app.id) => found,
        Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(CloseOutcome::NotThere),
        Err(error) => return Err(error.into()),
    };
    // Decided where it is written, so that a delivery which opens it again at this moment is seen.
    let marked = removal::mark_if(apps, &preview.id, |spec| !is_newer_known(spec, pull)).await?;
    if !marked {
        return Ok(CloseOutcome::Late);
    }
    // The answer does not wait: what is marked is removed also if this process ends.
    removal::begin(apps, preview.id);
    Ok(CloseOutcome::Going)
}

/// Returns whether a preview has seen a newer change than the delivery reports. Of two in the same
/// second neither is newer.
fn is_newer_known(spec: &AppSpec, pull: &Pull) -> bool {
    let known = spec.pull.as_ref().and_then(|known| known.told_at);
    known.zip(pull.at).is_some_and(|(known, at)| at < known)
}

/// Remembers the newest [`CLOSED_PULLS_KEPT`].
fn note_closed(spec: &mut AppSpec, number: u32, at: Timestamp) {
    let last = spec.closed_pulls.entry(number).or_insert(at);
    *last = at.max(*last);
    while spec.closed_pulls.len() > CLOSED_PULLS_KEPT {
        let Some(oldest) = spec.closed_pulls.iter().min_by_key(|(_, at)| **at).map(|(number, _)| *number)
        else {
            return;
        };
        spec.closed_pulls.remove(&oldest);
    }
}

/// The preview that a path names.
async fn of_path(apps: &Apps, caller: &Caller, path: &AppPath) -> Result<AppRecord> {
    let record = path.find(apps, caller).await?;
    let unknown = || Error::not_found("preview", &path.second);
    let number: u32 = path.second.parse().map_err(|_| unknown())?;
    let mut all = apps.store.previews(&record.id).await?.into_iter();
    all.find(|one| one.spec.pull.as_ref().is_some_and(|pull| pull.number == number) && !one.spec.deleting)
        .ok_or_else(unknown)
}

/// List an app's previews, oldest first.
#[utoipa::path(get, path = "/v1/apps/{id}/previews", tag = "apps", operation_id = "list_app_previews",
    params(("id" = String, Path)),
    responses((status = 200, body = Items<api::AppPreview>), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
) -> ApiResult<Json<Items<api::AppPreview>>> {
    let record = path.find(&apps, &caller).await?;
    let mut items = Vec::new();
    for preview in apps.store.previews(&record.id).await? {
        if !preview.spec.deleting {
            items.push(view::preview(&apps, &headers, preview).await?);
        }
    }
    Ok(Json(Items { items }))
}

/// Get the preview of a pull request.
#[utoipa::path(get, path = "/v1/apps/{id}/previews/{number}", tag = "apps", operation_id = "get_app_preview",
    params(("id" = String, Path), ("number" = u32, Path)),
    responses((status = 200, body = api::AppPreview), (status = 404, body = ErrorBody)))]
pub async fn show(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
) -> ApiResult<Json<api::AppPreview>> {
    let preview = of_path(&apps, &caller, &path).await?;
    Ok(Json(view::preview(&apps, &headers, preview).await?))
}

/// Remove a preview. The next commit to its pull request creates it again.
#[utoipa::path(delete, path = "/v1/apps/{id}/previews/{number}", tag = "apps", operation_id = "delete_app_preview",
    params(("id" = String, Path), ("number" = u32, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: AppPath) -> ApiResult<StatusCode> {
    let preview = of_path(&apps, &caller, &path).await?;
    removal::run(&apps, preview.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_pull_requests_are_remembered_up_to_a_limit() {
        let mut spec = AppSpec::default();
        let at = |seconds: usize| Timestamp::from_second(seconds as i64).unwrap();
        for number in 0..=CLOSED_PULLS_KEPT {
            note_closed(&mut spec, u32::try_from(number).unwrap(), at(number));
        }
        assert_eq!(spec.closed_pulls.len(), CLOSED_PULLS_KEPT);
        assert!(!spec.closed_pulls.contains_key(&0), "the oldest is forgotten");
        note_closed(&mut spec, 7, at(1));
        assert_eq!(spec.closed_pulls[&7], at(7), "one that comes late says nothing new");
    }

    #[test]
    fn late_pull_request_events_are_recognized_by_timestamp() {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        let told = |told_at| AppSpec {
            pull: Some(PullSpec { told_at, ..PullSpec::default() }),
            ..AppSpec::default()
        };
        let closed = |at| Pull {
            change: Change::Closed,
            number: 7,
            title: String::new(),
            branch: String::new(),
            base: String::new(),
            commit: String::new(),
            url: None,
            fork: false,
            at,
        };
        assert!(is_newer_known(&told(at(5)), &closed(at(4))), "it was opened again after that");
        for (known, tells) in [(at(5), at(5)), (at(5), at(6)), (None, at(1)), (at(5), None)] {
            assert!(!is_newer_known(&told(known), &closed(tells)), "{known:?} {tells:?}");
        }
        assert!(!is_newer_known(&AppSpec::default(), &closed(at(1))));
    }
}
