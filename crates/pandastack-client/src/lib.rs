//! Client of the PandaStack API.
//!
//! Provides the configuration of a client ([`Config`]), one typed method per call ([`Client`]),
//! event streams and errors with hints ([`ClientError::hints`]). Request and response
//! types are in [`pandastack_types::api`].
//!
//! Invariants:
//! - Every call ends with a response, an error or a timeout.
//! - A call that creates a sandbox is only retried with the same idempotency key.
//! - The API key never appears in an error or debug output.
//!
//! This crate prints nothing and reads no terminal.

#![forbid(unsafe_code)]

mod apps;
mod catalog;
mod client;
mod config;
mod config_file;
mod databases;
mod error;
mod exec;
mod files;
mod functions;
mod members;
mod observe;
mod processes;
mod sandboxes;
mod schedules;
mod template_builds;
mod trees;
mod tunnel;
mod volumes;
mod webhooks;

pub use apps::LineStream;
pub use catalog::BuildLogs;
pub use client::Client;
pub use config::{API_URL_DEFAULT, Config};
pub use config_file::ConfigFile;
pub use error::{ClientError, Result};
pub use exec::LogStream;
pub use files::FileBytes;
pub use functions::FunctionLogs;
pub use observe::EventStream;
pub use processes::{ExecEvent, ExecStream};
pub use trees::{FindFiles, GrepFiles, WatchEvent, WatchStream};
