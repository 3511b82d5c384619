//! The control plane: REST API, placement, auth, reapers.
//!
//! ```text
//!   clients --/v1--> routes --> ops --> agent_client --agent_api--> agents
//!                      |         |                                    |
//!                      |         +--> store (the record of truth)     |
//!                      +--> data path, streamed straight through      |
//!                                 report <--/internal/v1--------------+
//! ```
//!
//! Control decides and records; agents do. It owns the public API, keys, placement, lifetimes and the record of truth.
//! It knows nothing of engines, disks or networks, and losing it stops no sandbox.
//!
//! Must hold: one transition is one transaction is one event; a row exists before its machine does and is gone after
//! it; what was acknowledged survives; a client that goes away leaves nothing half done.

#![forbid(unsafe_code)]

mod app_databases;
mod audit;
mod auth;
mod bootstrap;
mod config;
mod e2b_directory;
mod housekeeping;
mod idempotency;
mod metrics;
mod openapi;
mod postgres_listener;
mod preview_routes;
mod rate;
mod replicas;
mod routes;
mod schedule_targets;
mod scope;
mod serve;
mod services;
mod signed_url;
mod unread_body;

pub use config::{ControlConfig, DatabaseUrl, PostgresConfig};
pub use openapi::openapi_json;
pub use pandastack_databases::BackupConfig;
pub use pandastack_functions::{LocalError, LocalFunction, LocalRuntime, local_router};
pub use pandastack_postgres::ALPN as POSTGRES_ALPN;
pub use pandastack_store::clock;
pub use serve::{Control, ServeError, serve};
