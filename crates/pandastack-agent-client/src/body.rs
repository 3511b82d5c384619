//! Bodies of requests, by the kind that an endpoint describes.

use axum::body::Body;
use pandastack_types::agent_api::{Bytes, Empty, Json, MediaType};
use serde::Serialize;

/// A kind of request body, and the caller's value for it.
pub trait RequestBody {
    /// The value to send.
    type Value<'a>;
    /// Value of `Content-Type`.
    const MEDIA_TYPE: Option<&'static str>;

    /// Encodes a value as a request body.
    fn body(value: Self::Value<'_>) -> Result<Body, serde_json::Error>;
}

impl RequestBody for Empty {
    type Value<'a> = ();
    const MEDIA_TYPE: Option<&'static str> = None;

    fn body((): ()) -> Result<Body, serde_json::Error> {
        Ok(Body::empty())
    }
}

impl<T: Serialize + 'static> RequestBody for Json<T> {
    type Value<'a> = &'a T;
    const MEDIA_TYPE: Option<&'static str> = Some("application/json");

    fn body(value: &T) -> Result<Body, serde_json::Error> {
        serde_json::to_vec(value).map(Body::from)
    }
}

impl<M: MediaType> RequestBody for Bytes<M> {
    type Value<'a> = Body;
    const MEDIA_TYPE: Option<&'static str> = Some(M::NAME);

    fn body(value: Body) -> Result<Body, serde_json::Error> {
        Ok(value)
    }
}
