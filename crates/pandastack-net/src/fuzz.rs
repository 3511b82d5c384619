//! Targets for `cargo xtask fuzz`.

pub use crate::names::fuzz::{dns_answer, hello};
