//! What published clients call and this server does not have yet: it says so, instead of "no such route".

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use pandastack_types::ErrorCode;

use crate::app::App;
use crate::error::ApiError;

/// Whoever builds one of them takes it out of here.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/templates/build", post(absent))
}

async fn absent() -> ApiError {
    ApiError::new(
        ErrorCode::NotImplemented,
        "building templates is not there yet on this server; set up a sandbox, take a snapshot of it and create others from that",
    )
}
