//! Backups of databases: WAL and base backups are archived, and databases are restored from them.
//!
//! ```text
//!   leader: for every database that is ready, a keeper: log, always while it is awake; a base backup at once, then daily
//!   restore: machine like a new database's -> base and log from the archive -> the server recovers -> its own passwords
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `keeper` | who archives what, base backups in time, deleting what retention lets go |
//! | `archives` | the archive of each database, and how its backup goes |
//! | `connection` | connections that do not wake a machine, nor keep it awake |
//! | `restore` | a machine's server made into what the archive says |
//! | `feed` | its log, as it asks for it |
//! | `failover` | a restored copy in place of a database that is out of reach |
//! | `drill` | restores that only prove that they work |
//! | `routes` | the API |
//!
//! Must hold: a database that sleeps is never woken for its backups; one that is deleted takes its
//! archive with it; a copy has an archive of its own. The archive alone decides what exists: only
//! the outcome of the last drill is kept elsewhere.

pub(crate) mod archives;
pub(crate) mod connection;
pub(crate) mod drill;
pub(crate) mod failover;
mod feed;
pub mod keeper;
pub(crate) mod restore;
pub mod routes;
