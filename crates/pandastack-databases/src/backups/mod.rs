//! Backups of databases: WAL and base backups are archived, and databases are restored from them.
//!
//! ```text
//!   leader: for every database that is ready, a keeper: log, always while it is awake; a base backup at once, then daily
//!   restore: machine like a new database's -> base and log from the archive -> the server recovers -> its own passwords
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `keeper` | archiving tasks, scheduled base backups, retention |
//! | `archives` | the archive of each database, and its backup status |
//! | `connection` | connections that do not wake a machine, nor keep it awake |
//! | `restore` | restoring a machine's server from the archive |
//! | `feed` | sending it the log that it requests |
//! | `failover` | replacing an unreachable database by a restored copy |
//! | `drill` | test restores |
//! | `routes` | the API |
//!
//! Must hold: a sleeping database is never woken for its backups; deleting a database deletes its
//! archive; a copy has its own archive. The archive alone decides what exists: only the outcome of
//! the last drill is kept elsewhere.

pub(crate) mod archives;
pub(crate) mod connection;
pub(crate) mod drill;
pub(crate) mod failover;
mod feed;
pub mod keeper;
pub(crate) mod restore;
pub mod routes;
