//! The guest program in serve mode, driven by the host's client over a unix socket: everything but booting.

#![allow(clippy::unwrap_used)]

mod channel;
mod files;
mod followers;
mod harness;
mod machine;
mod processes;
mod trees;
mod watches;
