//! HTTP/1.1 as we speak it ourselves: to guests ([`Upstream`]).
//!
//! It has no tasks and no channels: whoever uses a connection drives it, so a request costs no hand-over, and nothing but
//! the bytes that were read is allocated for its body.
//!
//! Must hold: where a message ends is never a guess. What can be read in two ways is refused, and bodies are framed anew
//! on each side.

mod answer_head;
mod chunks;
mod lines;
mod request_head;
mod send;
mod upstream;

pub(crate) use upstream::{Upstream, UpstreamError};
