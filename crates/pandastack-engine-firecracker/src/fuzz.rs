//! Targets for `cargo xtask fuzz`.

use std::io::Cursor;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::Method;

use crate::api::types::Instance;
use crate::api::{decode, exchange_over};
use crate::limits::ANSWER_BYTES_MAX;

/// An answer of the API. It is read to its end or refused, and is never longer than allowed.
pub fn api_answer(data: &[u8]) {
    let _ = decode::<Instance>(data);
    let stream = tokio::io::join(Cursor::new(data.to_vec()), tokio::io::sink());
    let mut exchange = pin!(exchange_over(stream, Method::GET, "/", Bytes::new()));
    let mut context = Context::from_waker(Waker::noop());
    // The sender and the connection take turns, and nothing else can wake them.
    let answer = (0..data.len() + 100).find_map(|_| match exchange.as_mut().poll(&mut context) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    });
    if let Some(Ok(body)) = answer {
        assert!(body.len() <= ANSWER_BYTES_MAX.min(data.len()));
        let _ = decode::<Instance>(&body);
    }
}
