//! The code interpreter that E2B's clients expect on port 49999 of a sandbox: the platform's code contexts in their form.

mod context;
mod execution;
mod json;
mod traffic_token;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use http::StatusCode;

use crate::error::RestError;
use crate::gate::check_token;
use crate::native::Native;

/// Routes of the interpreter's port.
pub(crate) fn routes(native: Native) -> Router {
    let execute = Router::new()
        .route("/execute", post(execution::execute))
        .layer(from_fn_with_state(native.clone(), check_token));
    let contexts = Router::new()
        .route("/contexts", get(context::list).merge(post(context::create)))
        .route("/contexts/{id}", delete(context::remove))
        .route("/contexts/{id}/restart", post(context::restart))
        .layer(from_fn_with_state(native.clone(), traffic_token::check));
    execute
        .merge(contexts)
        .route("/health", get(async || StatusCode::OK))
        .fallback(async || {
            RestError::new(StatusCode::NOT_FOUND, "route not found on the code interpreter's port")
        })
        .with_state(native)
}
