//! Responses to requests whose body was not read.
//!
//! Requests are often refused before their body was read. The server then closes the connection,
//! and a client that reuses it for its next request would find it broken; so the response has
//! `Connection: close`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::tapped_body::TappedBody;

/// Ends the connection of a request that was answered before its body was read.
pub(crate) async fn close_unread(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let ended = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&ended);
    let request = request.map(|body| {
        TappedBody::around(body, move |frame, has_ended| {
            if has_ended {
                watched.store(true, Ordering::Relaxed);
            }
            frame
        })
    });
    let mut response = next.run(request).await;
    if !ended.load(Ordering::Relaxed) && !response.status().is_success() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
