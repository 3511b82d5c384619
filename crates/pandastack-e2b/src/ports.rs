//! Ports of a sandbox that this crate serves instead of the guest.

use axum::Router;
use axum::extract::{Extension, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pandastack_edge::Target;

use crate::cors;
use crate::error::RestError;
use crate::gate;
use crate::native::Native;

/// Port of the daemon that E2B's clients expect in every sandbox.
pub const ENVD_PORT: u16 = 49983;
/// Port of the code interpreter.
pub const INTERPRETER_PORT: u16 = 49999;
/// Ports of every sandbox that this crate answers in the guest's place.
pub const PORTS: [u16; 2] = [ENVD_PORT, INTERPRETER_PORT];

/// The router of each port.
#[derive(Clone)]
struct PortRouters {
    envd: Router,
    interpreter: Router,
}

/// Serves both ports to sandboxes that run. Requests carry a [`Target`].
pub(crate) fn routes(native: Native, envd: Router, interpreter: Router) -> Router {
    Router::new()
        .fallback(dispatch)
        .layer(Extension(PortRouters { envd, interpreter }))
        .layer(from_fn_with_state(native, gate::open_session))
        .layer(from_fn(cors::allow_any))
}

async fn dispatch(
    Extension(routers): Extension<PortRouters>,
    Extension(target): Extension<Target>,
    request: Request,
) -> Response {
    use tower::ServiceExt;
    let router = match target.port {
        ENVD_PORT => routers.envd,
        INTERPRETER_PORT => routers.interpreter,
        _ => {
            return RestError::new(StatusCode::NOT_FOUND, "this port is served by the sandbox itself")
                .into_response();
        }
    };
    router.oneshot(request).await.unwrap_or_else(|never| match never {})
}
