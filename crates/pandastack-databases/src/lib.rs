//! Managed PostgreSQL: each database runs in its own machine, forked from a template whose server
//! runs already.
//!
//! ```text
//!   create: row -> fork of the template -> its own passwords -> `SELECT 1` as its user -> row is ready
//!   branch: row -> fork of the machine  -> its own passwords, others' sessions ended -> the same
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `routes` | the API |
//! | `query` | statements over HTTP |
//! | `ops` | creating, branching, changing, deleting |
//! | `machines`, `spec` | the machine and the volume of a database, and their specs |
//! | `server` | administrator sessions and their statements |
//! | `shell` | commands in the machine of a database |
//! | `replay` | starting a server, and waiting until it has replayed its log |
//! | `backups` | the archive: base backups, log, restores |
//! | `credentials` | passwords, derived and never stored |
//! | `gateway` | databases as the edge reaches them; holds clients while a machine is replaced |
//! | `connector` | connections to the server of a machine |
//! | `address` | where clients connect to |
//! | `attachments` | the trait that tells whether an app uses a database |
//! | `ports` | a port for each database, without host names |
//! | `view` | the API's view of a database |
//! | `recovery` | cleanup after a stopped control |
//! | `disk_guard`, `full_disks` | whether a database can be written to |
//! | `revive` | another machine for a database that lost its own |
//! | `reset` | new passwords, also for servers that were out of reach |
//!
//! Data is on a volume that belongs to the database: machines come and go.
//!
//! Must hold: a new database is reported only after a query succeeded the way users send it.
//! Existing databases are revived even if their owners changed or dropped role and database, so
//! checks use the administrator. A create that fails leaves neither row nor machine nor volume. A
//! machine of a database is reached through the database only. Machines are driven by the
//! operations of the sandbox API: there is no second way to make one.

#![forbid(unsafe_code)]

mod address;
mod attachments;
pub mod backups;
mod config;
mod connector;
mod credentials;
pub mod disk_guard;
mod full_disks;
mod gateway;
mod machines;
mod ops;
pub mod ports;
mod query;
mod recovery;
mod replay;
mod reset;
pub mod revive;
pub mod routes;
mod server;
mod service;
mod shell;
mod spec;
mod view;

pub use address::PublicAddress;
pub use attachments::Attachments;
pub use config::BackupConfig;
pub use gateway::StoredDatabases;
pub use machines::take_mark;
pub use query::run_query;
pub use recovery::recover;
pub use service::{DatabasesParts, ManagedDatabases};
pub use view::inside_url;
