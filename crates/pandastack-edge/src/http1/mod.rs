//! Our own HTTP/1.1: to guests ([`Upstream`]), and to clients as long as they send plain requests
//! ([`Downstream`]).
//!
//! The implementation has no tasks and no channels: the user of a connection drives it, so a request
//! costs no hand-over, and only received bytes are allocated for its body.
//!
//! Must hold: where a message ends is never a guess. A message that can be read in two ways is refused, and
//! bodies are framed again on each side.

mod answer_head;
mod chunks;
mod downstream;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod lines;
mod plain_head;
mod request_head;
mod rewound;
mod send;
mod upstream;
mod write_answer;

pub(crate) use downstream::{Downstream, NextRequest, PlainRequest};
pub(crate) use rewound::RewoundStream;
pub(crate) use upstream::{Upstream, UpstreamError};
