//! Targets for `cargo xtask fuzz`.

pub use crate::files::fuzz::tar_stream;
pub use crate::function::fuzz::runtime_http;
