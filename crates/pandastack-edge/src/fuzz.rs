//! Targets for `cargo xtask fuzz`.

pub use crate::http1::fuzz::{answer, chunks, request};
pub use crate::websocket::fuzz::websocket;
