//! Connections that change their protocol.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};

/// The answer after which a connection speaks another protocol.
pub fn switching(protocol: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
    response
}
