//! The app service: builds a source in one machine, serves it from others, and switches versions
//! without downtime.
//!
//! ```text
//!   routes, hooks --> a deployment, queued --> deployer: one at a time per app, the newest wins
//!                                                 |
//!        build:  build machine <- source, install (or restored), build --> artifact (a snapshot)
//!        serve:  machines <- artifact, start, ports, health check
//!        switch: one transaction; edges look up the app's machines again
//!        prune:  the last versions stay asleep for a rollback; older ones are deleted
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `routes`, `settings`, `upload`, `env`, `dotenv`, `domains`, `domain_challenge`, `runtime_logs`, `usage`, `awake`, `hooks`, `path`, `view`, `check` | the API |
//! | `databases`, `attached_databases`, `database_connector` | attached databases, and connections to them |
//! | `state`, `activity` | the service's state; deployments in progress in this process |
//! | `pulls`, `previews`, `preview_settings` | pull request events, and the previews they create |
//! | `preview_repos`, `preview_env` | preview settings and variables of a repository |
//! | `deployer`, `deploy` | the deployment queue; the steps of one deployment |
//! | `source`, `source_config`, `build`, `serve` | the steps that run in machines |
//! | `reconcile` | keeps the number of machines: replaces lost ones, adds and removes others |
//! | `git`, `deploy_key` | Git addresses and credentials |
//! | `machine`, `command`, `log`, `shortage` | machines of apps, commands in them, their output, and shortages |
//! | `poller` | polls repositories without a webhook |
//! | `commit_status`, `reporter` | reports deployment states to the Git host |
//! | `prune`, `removal` | deletes machines and snapshots that no app needs; deletes apps |
//! | `names`, `name_changes` | resolves host names to apps; tells edges to look them up again |
//!
//! Invariants:
//!
//! - A deployment that fails or is cancelled does not change what serves.
//! - After a crash at any point, a deployment continues or fails; it never hangs.
//! - A source touches only a machine's file system, never the host's.
//! - A secret is neither a command argument nor in a log line of the platform.
//!
//! Not here: records of apps and deployments (`pandastack-store`), creating and stopping machines
//! ([`Machines`](pandastack_sandboxes::machines::Machines)), databases (another service, behind
//! [`AttachedDatabases`]), holding requests while an app wakes (the edge), detecting an app's
//! framework (`pandastack-detect`).

#![forbid(unsafe_code)]

mod activity;
mod attached_databases;
pub mod awake;
mod build;
mod build_error;
mod change;
mod check;
mod command;
mod commit_status;
pub mod database_connector;
pub mod databases;
mod delivery;
mod deploy;
mod deploy_key;
pub mod deployer;
mod domain_challenge;
pub mod domains;
mod dotenv;
pub mod env;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod git;
mod health;
pub mod hooks;
mod log;
mod machine;
mod name_changes;
pub mod names;
mod path;
pub mod poller;
pub mod preview_env;
mod preview_name;
pub mod preview_repos;
mod preview_settings;
pub mod previews;
mod prune;
mod pulls;
mod queue;
mod reconcile;
mod removal;
pub mod reporter;
pub mod routes;
pub mod runtime_logs;
mod serve;
pub mod settings;
mod shortage;
mod source;
mod source_config;
mod state;
pub mod upload;
pub mod usage;
mod view;

pub use attached_databases::AttachedDatabases;
pub use databases::attached_app;
pub use domain_challenge::Challenges;
pub use name_changes::NameChanges;
pub use state::{Apps, AppsParts};
