//! Leases that keep a live app awake, over HTTP: for work in the background, which nobody outside can see.
//!
//! A lease is its machines': the next version begins without one, and the old one keeps it while it drains.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_types::api::{KeepAwake, Lifecycle};
use pandastack_types::{ErrorBody, SandboxState};

use super::routes::OfApp;
use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::JsonBody;
use crate::ops;

/// Keep an app from falling asleep, for work in the background: its first machine, which wakes, and those beside it that are awake.
#[utoipa::path(post, path = "/v1/apps/{id}/keep-awake", tag = "apps", operation_id = "app_keep_awake", params(("id" = String, Path)),
    request_body = KeepAwake, responses((status = 200, body = Lifecycle), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn keep_awake(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
    JsonBody(request): JsonBody<KeepAwake>,
) -> ApiResult<Json<Lifecycle>> {
    let record = of.find(&app, &caller).await?;
    let none =
        || ApiError::conflict(format!("app `{}` has no version that serves; deploy it first", record.name));
    let live = app.store.deployment(&record.id, record.active.as_ref().ok_or_else(none)?).await?;
    let (mut first, mut lost) = (None, None);
    for id in live.spec.machines() {
        let (machine, client) = match ops::live(&app, &record.workspace, id).await {
            Ok(found) => found,
            // The others serve until it is replaced.
            Err(error) => {
                lost = Some(error);
                continue;
            }
        };
        if first.is_none() || machine.state == SandboxState::Running {
            let kept = ops::lifecycle::keep_awake(&app, machine, client, request.seconds).await?;
            first.get_or_insert(kept);
        }
    }
    let first = first.ok_or_else(|| lost.unwrap_or_else(none))?;
    Ok(Json(ops::lifecycle::show(&app, &first).await))
}
