//! Client of the PandaStack API.
//!
//! Owns how a program finds its server and key ([`Config`]), one typed method per call ([`Client`]), event streams
//! and errors that carry the next step ([`ClientError::hints`]). The shapes are those of
//! [`pandastack_types::api`].
//!
//! What must always hold: every call ends, by an answer, an error or a deadline; a call that creates something is only
//! repeated under the same idempotency key; the key never appears in an error or a debug print.
//!
//! Left to others: what people see. This crate prints nothing and reads no terminal.

#![forbid(unsafe_code)]

mod apps;
mod catalog;
mod client;
mod config;
mod databases;
mod error;
mod exec;
mod files;
mod functions;
mod observe;
mod processes;
mod sandboxes;
mod schedules;
mod trees;
mod tunnel;
mod volumes;

pub use apps::LineStream;
pub use catalog::BuildLogs;
pub use client::Client;
pub use config::{API_URL_DEFAULT, Config};
pub use error::ClientError;
pub use exec::LogStream;
pub use files::FileBytes;
pub use functions::FunctionLogs;
pub use observe::EventStream;
pub use processes::{ExecEvent, ExecStream};
pub use trees::{FindFiles, GrepFiles, WatchEvent, WatchStream};

/// Result of a call.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;
