//! Services that published clients know and this server does not have yet: they say so, instead of "no such route".

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, post};
use http::Uri;
use pandastack_types::ErrorCode;

use crate::app::App;
use crate::error::ApiError;

/// First parts of their paths. Whoever builds one of them takes it out of this list.
const SERVICES: [&str; 2] = ["preview-repos", "repos"];

pub(super) fn routes() -> Router<Arc<App>> {
    let mut router = Router::new().route("/templates/build", post(absent));
    for service in SERVICES {
        router = router
            .route(&format!("/{service}"), any(absent))
            .route(&format!("/{service}/{{*rest}}"), any(absent));
    }
    router
}

async fn absent(uri: Uri) -> ApiError {
    let path = uri.path().trim_start_matches("/v1");
    let name = match path.split('/').nth(1).unwrap_or_default() {
        "templates" => "building templates",
        service => SERVICES.into_iter().find(|known| *known == service).unwrap_or("this service"),
    };
    ApiError::new(
        ErrorCode::NotImplemented,
        format!("{name}: not there yet on this server; sandboxes, snapshots and templates are"),
    )
}
