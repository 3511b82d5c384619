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
//! | `layout` | names of objects, and why there are pieces |
//! | `archive` | objects in a store |
//! | `log_writer` | the log on its way into the archive |
//! | `archiver` | the task that does it, and its status |
//! | `base` | taking base backups |
//! | `commits` | when transactions ended, read from the log |
//! | `window` | what can be restored, how, and what may be deleted |
//! | `restore` | what a new server needs |
//!
//! Must hold: what the archive acknowledged is durable; what is opened is what was sealed; a restore is exact or refused; decrypted, everything is
//! what a stock PostgreSQL reads.
//!
//! Left to others: machines, the way to a server, schedules, keys.

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
