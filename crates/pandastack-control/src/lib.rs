//! The control server: request handling, the routes of sandboxes, and the wiring of the services.
//!
//! ```text
//!   clients --/v1--> layers: keys, rates, audit, idempotency, leader
//!                      |
//!                      +--> routes: sandboxes, files, snapshots --> pandastack-sandboxes --> agents
//!                      +--> routers of apps, databases, functions, schedules, contexts
//!   agents --/internal/v1--> reports, routes of the edge, connections to databases
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `serve`, `services` | starting and stopping; wiring of the services |
//! | `auth`, `access`, `tenants`, `signed_url`, `rate` | authentication, authorization, rate limits
//! |
//! | `login` | people: sign-in through a login provider, and the roles that it gives |
//! | `console` | sessions of the web console, and the events that it follows |
//! | `audit`, `idempotency`, `metrics`, `unread_body` | layers around every request |
//! | `routes` | the HTTP surface of the sandbox core |
//! | `replicas` | several servers on one database, of which one leads |
//! | `schedule_targets`, `app_databases` | adapters between services |
//! | `e2b_directory`, `preview_routes` | lookups of sandboxes for the E2B facade and the edge |
//!
//! Must hold: a service depends on no other service, nor on this crate; acknowledged changes
//! survive; a client that disconnects leaves nothing half done. Losing this server stops no
//! sandbox.

#![forbid(unsafe_code)]

mod access;
mod api_key;
mod app_databases;
mod audit;
mod auth;
mod body_budget;
mod bootstrap;
mod config;
mod console;
mod e2b_directory;
mod fleet;
mod followers;
mod housekeeping;
mod idempotency;
mod key_cache;
mod leader;
mod link_caller;
mod login;
mod metrics;
mod openapi;
mod postgres_listener;
mod preview_routes;
mod private_listeners;
mod rate;
mod replicas;
mod revocation;
mod routes;
mod schedule_targets;
mod serve;
mod services;
mod signed_url;
mod tapped_body;
mod tenants;
mod unread_body;
mod wiring;

pub use audit::sink::AuditSink;
pub use config::{ControlConfig, DatabaseUrl, PostgresConfig};
pub use login::{GroupRole, LoginConfig};
pub use openapi::openapi_json;
pub use pandastack_databases::BackupConfig;
pub use pandastack_functions::{LocalError, LocalFunction, LocalRuntime, local_router};
pub use pandastack_oidc::{OidcConfig, check_url};
pub use pandastack_postgres::ALPN as POSTGRES_ALPN;
pub use pandastack_sandboxes::outdated::advisories::AdvisoryFile;
pub use pandastack_sandboxes::outdated::{CHECK_EVERY, GRACE_DAYS, OutdatedPolicy};
pub use pandastack_sandboxes::tenancy::{Tenancy, TenancyMode};
pub use pandastack_store::clock;
pub use serve::{Control, ServeError, serve};
