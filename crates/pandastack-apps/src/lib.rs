//! Apps: a source is built in a machine of its own, served from another behind a stable name, and replaced without a
//! failed request.
//!
//! ```text
//!   routes, hooks --> a deployment, queued --> deployer: one at a time per app, the newest wins
//!                                                 |
//!        build:  build machine <- source, install (or restored), build --> artifact (a snapshot)
//!        serve:  machines <- artifact, start, ports, health check
//!        switch: one transaction; edges ask again which machines stand behind the name
//!        tidy:   the last versions stay asleep for a rollback, everything else goes
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `record`, `store` | what is written down, in `pandastack-store` |
//! | `routes`, `settings`, `upload`, `env`, `dotenv`, `domains`, `domain_challenge`, `runtime_logs`, `usage`, `awake`, `hooks`, `path`, `view`, `check` | the API |
//! | `databases`, `attached_databases`, `database_connector` | databases of apps, and the way to them |
//! | `state`, `activity` | what the service holds; what this process does right now |
//! | `pulls`, `previews`, `preview_settings` | what pull requests say, and what becomes of them |
//! | `preview_repos`, `preview_env` | what is said of the previews of a whole repository |
//! | `deployer`, `deploy` | whose turn it is; the steps of one deployment |
//! | `source`, `source_config`, `build`, `serve` | those steps, each in machines |
//! | `reconcile` | as many machines as was said: replaces what was lost, follows a change of their number |
//! | `git`, `deploy_key` | where repositories are, and what proves that an app may read them |
//! | `machine`, `command`, `log`, `shortage` | calls to a machine, what it says, and what it lacks |
//! | `poller` | looking at repositories whose host tells nothing |
//! | `commit_status`, `reporter` | telling a repository's host how deployments go |
//! | `tidy`, `removal` | which machines and snapshots an app needs; the rest is deleted; and apps themselves |
//! | `names` | what stands behind a host name |
//!
//! Must hold: a deployment that fails or is stopped leaves what serves alone; after a crash at any point a deployment goes
//! on or fails, and never stays where it was; sources never touch a host's file system, only a machine's; a secret is
//! neither an argument of a command nor in a log line of ours.
//!
//! Left to others: making and stopping machines (`ops`, the same that the sandbox API uses), holding requests while one
//! wakes (the edge), telling what kind of app a source is (`pandastack-detect`).

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
mod git;
mod health;
pub mod hooks;
mod log;
mod machine;
pub mod names;
mod path;
pub mod poller;
pub mod preview_env;
mod preview_name;
pub mod preview_repos;
mod preview_settings;
pub mod previews;
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
mod tidy;
pub mod upload;
pub mod usage;
mod view;

pub use attached_databases::AttachedDatabases;
pub use domain_challenge::Challenges;
pub use state::Apps;
