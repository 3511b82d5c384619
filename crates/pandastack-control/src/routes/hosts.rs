//! Hosts, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_types::ErrorBody;
use pandastack_types::api::{Host, Items};

use crate::services::Services;

/// List the hosts of the installation. Requires an operator key.
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", responses((status = 200, body = Items<Host>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(State(services): State<Arc<Services>>) -> Json<Items<Host>> {
    Json(Items { items: services.hosts.list() })
}
