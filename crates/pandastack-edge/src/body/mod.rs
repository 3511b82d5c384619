//! Bodies, which are streamed and never collected in memory.

mod error;
mod guest;
mod request;
mod response;

pub(crate) use error::{BodyError, BodyStalled, BodyTooLarge};
pub(crate) use guest::{GuestBody, Source};
pub(crate) use request::RequestBody;
pub use response::ResponseBody;
