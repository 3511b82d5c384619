//! Continuous backup of a PostgreSQL server, and restores to any instant of it.
//!
//! ```text
//!   server --replication--> Archiver (log) ----+--> Archive: sealed objects in a store <-- Catalog: what can be restored, what may go
//!                      \--> take_base (files) -+                 |
//!                                                                +--> Restore: a tar, log files and settings for a stock server
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `position` | positions, timelines and segments of the log |
//! | `replication` | the server's protocol |
//! | `seal` | compression and encryption of an object |
//! | `layout` | names of objects, and the reason for pieces |
//! | `archive` | objects in a store |
//! | `log_writer` | writing the log to the archive |
//! | `archiver` | the archiving task and its status |
//! | `base` | taking base backups |
//! | `commits` | commit times, read from the log |
//! | `window` | restorable periods, and retention |
//! | `restore` | files and settings for a new server |
//!
//! Must hold: acknowledged objects are durable; an opened object is identical to the sealed one; a
//! restore is exact or refused; decrypted, every object is readable by a stock PostgreSQL.
//!
//! Out of scope: machines, connections to a server, schedules, keys.

#![forbid(unsafe_code)]

mod archive;
mod archiver;
mod base;
mod commits;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod layout;
pub mod limits;
mod log_writer;
mod position;
pub mod replication;
mod restore;
mod seal;
mod window;

pub use archive::{Archive, ArchiveError, ArchivedObject};
pub use archiver::{Archiver, ArchiverError, ConnectError, Status};
pub use base::{BaseError, BaseProgress, take_base};
pub use layout::{Entry, Piece};
pub use log_writer::LogError;
pub use position::{Lsn, Segment, Timeline};
pub use replication::{Login, Password, Slot};
pub use restore::{Recovery, Restore, RestoreError};
pub use seal::{Key, SealError};
pub use window::{BaseBackup, Catalog, Chain, Gap, Plan, PlanError, Target, Window};
