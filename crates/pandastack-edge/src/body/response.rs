//! The body of a response, from a guest or from the edge itself.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::error::BodyError;
use super::guest::GuestBody;

/// The body of a response to a client.
pub enum ResponseBody {
    /// Made by the edge.
    Own(Full<Bytes>),
    /// From the API.
    Api(axum::body::Body),
    /// From a guest.
    Guest(Box<GuestBody>),
}

impl ResponseBody {
    /// An empty body.
    pub fn empty() -> Self {
        Self::Own(Full::default())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            ResponseBody::Own(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            ResponseBody::Api(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            ResponseBody::Guest(body) => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Own(body) => body.is_end_stream(),
            ResponseBody::Api(body) => body.is_end_stream(),
            ResponseBody::Guest(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Own(body) => body.size_hint(),
            ResponseBody::Api(body) => body.size_hint(),
            ResponseBody::Guest(body) => body.size_hint(),
        }
    }
}
