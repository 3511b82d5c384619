//! Admits calls for which clients send no access token.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pandastack_types::api::Preview;
use pandastack_types::preview::Visibility;
use subtle::ConstantTimeEq;

use crate::error::RestError;
use crate::native::Native;
use crate::native_paths as paths;
use crate::session::Session;

/// Middleware: as on any other port, knowing the sandbox's unguessable id is enough. If the sandbox's
/// ports are private, its traffic token is required.
pub(super) async fn check(
    State(_): State<Native>,
    session: Session,
    request: Request,
    next: Next,
) -> Response {
    let preview: Preview = match session.native.get(&paths::preview(&session.sandbox)).await {
        Ok(preview) => preview,
        Err(error) => return RestError::from(error).into_response(),
    };
    let given = request.headers().get("e2b-traffic-access-token").map_or(&b""[..], |value| value.as_bytes());
    let is_open = match (preview.visibility, preview.token) {
        (Visibility::Unlisted, _) => true,
        (Visibility::Private, Some(token)) => bool::from(token.as_bytes().ct_eq(given)),
        _ => false,
    };
    match is_open {
        true => next.run(request).await,
        false => RestError::new(
            StatusCode::FORBIDDEN,
            "the traffic access token is missing or wrong; send it in `E2b-Traffic-Access-Token`",
        )
        .into_response(),
    }
}
