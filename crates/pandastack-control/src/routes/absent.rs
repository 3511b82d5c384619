//! What published clients call and this server does not have yet: it says so, instead of "no such route".

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use pandastack_rest::ApiError;
use pandastack_sandboxes::Sandboxes;
use pandastack_types::{Error, ErrorCode};

/// Whoever builds one of them takes it out of here.
pub(super) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new().route("/templates/build", post(absent))
}

async fn absent() -> ApiError {
    Error::new(
        ErrorCode::NotImplemented,
        "building templates is not supported yet; set up a sandbox, take a snapshot of it and create \
         sandboxes from that",
    )
    .into()
}
