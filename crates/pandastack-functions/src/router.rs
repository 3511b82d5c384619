//! The router of the functions API.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post, put};

use crate::functions::Functions;
use crate::{call_routes, deploy_routes, logs, routes};

/// Routes of calls that create something and accept an `Idempotency-Key`.
pub fn once_only(functions: &Arc<Functions>) -> Router {
    Router::new()
        .route("/functions", post(routes::create))
        .route("/functions/{id}/invoke", post(call_routes::invoke))
        .with_state(Arc::clone(functions))
}

/// Routes of the other calls.
pub fn repeatable(functions: &Arc<Functions>) -> Router {
    Router::new()
        .route("/functions", get(routes::list))
        .route("/functions/{id}", get(routes::describe).patch(routes::patch).delete(routes::remove))
        .route(
            "/functions/{id}/deploy",
            post(deploy_routes::deploy).layer(axum::extract::DefaultBodyLimit::disable()),
        )
        .route("/functions/{id}/code", get(deploy_routes::code))
        .route("/functions/{id}/logs", get(logs::logs))
        .route("/functions/{id}/metrics", get(call_routes::metrics))
        .route("/functions/{id}/rollback", post(deploy_routes::rollback))
        .route("/functions/{id}/runs", get(call_routes::runs).post(call_routes::record_run))
        .route("/functions/{id}/runs/{run}", get(call_routes::run))
        .route("/functions/{id}/runs/{run}/redrive", post(call_routes::redrive))
        .route("/functions/{id}/redrive", post(call_routes::redrive_all))
        .route("/functions/{id}/versions", get(deploy_routes::versions))
        .route("/functions/{id}/versions/{version}/log", get(deploy_routes::deploy_log))
        .route(
            "/functions/{id}/aliases/{alias}",
            put(deploy_routes::set_alias).merge(delete(deploy_routes::remove_alias)),
        )
        .with_state(Arc::clone(functions))
}
