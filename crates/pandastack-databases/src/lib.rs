//! Managed PostgreSQL: each database is a machine of its own, forked from a template whose server runs already.
//!
//! ```text
//!   create: row -> fork of the template -> its own passwords -> `SELECT 1` as its user -> row is ready
//!   branch: row -> fork of the machine  -> its own passwords, others' sessions ended -> the same
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `routes` | the API |
//! | `ops` | making, copying, changing, deleting |
//! | `server` | what is said to a server as its administrator |
//! | `replay` | starting a server, and waiting until it has replayed its log |
//! | `backups` | the archive: base backups, log, restores |
//! | `credentials` | passwords, derived and never stored |
//! | `way` | how the edge reaches a database |
//! | `ports` | a port of its own for each, where they have no names |
//! | `view` | what users see |
//! | `recovery` | what a stopped control left behind |
//! | `room` | whether a database can be written to |
//! | `revive` | another machine for a database that lost its own |
//! | `reset` | new passwords, also for servers that were out of reach |
//!
//! Data is on a volume that belongs to the database: machines come and go.
//!
//! Must hold: nobody is told of a new database before a query succeeded the way users send it; what exists is brought back whatever its owner
//! has made of role and database, so that is asked as the administrator; a create that fails leaves neither row
//! nor machine nor volume; a machine of a database is reached through the database only. Machines are driven by the operations of the
//! sandbox API: there is no second way to make one.

#![forbid(unsafe_code)]

pub mod backups;
mod config;
mod credentials;
mod ops;
pub mod ports;
mod recovery;
mod replay;
mod reset;
pub mod revive;
pub mod room;
pub mod routes;
mod server;
mod service;
mod view;
mod way;

pub use config::BackupConfig;
pub use ops::take_mark;
pub use recovery::recover;
pub use service::ManagedDatabases;
pub use view::{PublicAddress, inside_url};
pub use way::StoredDatabases;

use pandastack_types::{DatabaseId, Owner};

use pandastack_store::SandboxRecord;

/// Template that databases are forked from.
const TEMPLATE: &str = "postgres-16";
/// Where the template has its volume.
const DATA_PATH: &str = "/var/lib/postgresql";
/// Memory of a database that names none: the template's own.
const SIZE_DEFAULT_GIB: u32 = 1;
/// Sizes, in GiB of memory. Each is prepared once per host, at its first use.
const SIZES_GIB: [u32; 5] = [1, 2, 4, 8, 16];
/// Memory of a size is counted in these.
const MIB_PER_GIB: u32 = 1024;

/// What a machine of a database carries as its owner.
fn owner(id: &DatabaseId) -> Owner {
    Owner::Database(id.clone())
}

/// The database whose machine this is.
fn machine_of(machine: &SandboxRecord) -> Option<DatabaseId> {
    match &machine.owner {
        Some(Owner::Database(id)) => Some(id.clone()),
        _ => None,
    }
}
