//! Hosts, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_types::api::{Host, Items};
use pandastack_types::{ErrorBody, ErrorCode};

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};

/// All hosts. Needs an admin key: it shows the installation, not a workspace.
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", responses((status = 200, body = Items<Host>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(State(app): State<Arc<App>>, caller: Caller) -> ApiResult<Json<Items<Host>>> {
    if !caller.is_admin {
        let why = "this key may not see hosts; use the key that `pandastack up` made";
        return Err(ApiError::new(ErrorCode::Forbidden, why));
    }
    Ok(Json(Items { items: app.hosts.list() }))
}
