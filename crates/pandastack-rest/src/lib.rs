//! Code shared by all HTTP handlers.
//!
//! - [`ApiError`]: the one mapping from a domain error ([`pandastack_types::Error`]) to an answer.
//! - [`extract`]: bodies, queries and path parameters whose refusals are JSON errors.
//! - [`request_id`]: the layer that names each request, echoes the id and puts it into error bodies.
//! - [`sse`]: server-sent events. [`url`]: addresses of things as the caller reaches them.
//! - [`line_log`]: logs of long work, written in batches and followed as server-sent events.
//! - [`Caller`]: who calls. Authentication itself belongs to the server, behind [`Admission`].

#![forbid(unsafe_code)]

mod caller;
mod error;
pub mod extract;
pub mod line_log;
mod names;
pub mod request_id;
mod shape;
pub mod sse;
mod upgrade;
pub mod url;

pub use caller::{Admission, Caller};
pub use error::{ApiError, ApiResult};
pub use extract::{Id, InPath, JsonBody, Query};
pub use names::{FindNamed, Lookup, Names, named};
pub use upgrade::switching;
