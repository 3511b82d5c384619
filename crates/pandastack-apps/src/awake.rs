//! Keep-awake leases of apps over HTTP, for background work.
//!
//! A lease is its machines': the next version begins without one, and the old one keeps it, for as long as it is among the versions that
//! are kept.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use futures::future::join_all;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_types::api::{KeepAwake, Lifecycle};
use pandastack_types::{Error, ErrorBody, Result, SandboxState, chain};

use crate::path::AppPath;
use crate::state::Apps;

/// Keep an app awake for background work. Wakes its first instance; other instances that are awake stay
/// awake.
#[utoipa::path(post, path = "/v1/apps/{id}/keep-awake", tag = "apps", operation_id = "app_keep_awake", params(("id" = String, Path)),
    request_body = KeepAwake, responses((status = 200, body = Lifecycle), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn keep_awake(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    JsonBody(request): JsonBody<KeepAwake>,
) -> ApiResult<Json<Lifecycle>> {
    let record = path.find(&apps, &caller).await?;
    let none = || Error::conflict(format!("app `{}` has no live deployment; deploy it first", record.name));
    let live = apps.store.deployment(&record.id, record.active.as_ref().ok_or_else(none)?).await?;
    let (mut asked, mut lost) = (Vec::new(), Vec::new());
    for id in live.spec.machines() {
        match apps.machines.sandbox(&record.workspace, id).machine().await {
            Ok(machine) if asked.is_empty() || machine.record.state == SandboxState::Running => {
                asked.push(async move { machine.keep_awake(request.seconds).await });
            }
            Ok(_) => {}
            Err(error) => lost.push(Err(error)),
        }
    }
    let tried: Vec<_> = join_all(asked).await.into_iter().chain(lost).collect();
    for error in tried.iter().filter_map(|one| one.as_ref().err()) {
        tracing::info!(
            app = %record.id, error = %chain(&error),
            "cannot extend the lease of an app's machine"
        );
    }
    let first = first_good(tried).unwrap_or_else(|| Err(none()))?;
    Ok(Json(apps.machines.lifecycle(&first).await))
}

/// The first success, or else the first failure: one machine has the lease then, and the others
/// serve as before.
fn first_good<T>(tried: Vec<Result<T>>) -> Option<Result<T>> {
    let at = tried.iter().position(Result::is_ok).unwrap_or(0);
    tried.into_iter().nth(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_succeeds_if_any_machine_accepts_it() {
        let failed = |why: &str| Err(Error::conflict(why));
        let kept =
            |tried: Vec<Result<u8>>| first_good(tried).map(|one| one.map_err(|error| error.to_string()));
        let error = |why: &str| failed(why).map_err(|error: Error| error.to_string());
        assert_eq!(kept(vec![Ok(1), failed("lost")]), Some(Ok(1)));
        assert_eq!(kept(vec![failed("lost"), Ok(2), Ok(3)]), Some(Ok(2)));
        assert_eq!(kept(vec![failed("first"), failed("second")]), Some(error("first")));
        assert_eq!(kept(vec![]), None);
    }
}
