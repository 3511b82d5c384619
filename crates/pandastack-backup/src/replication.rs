//! PostgreSQL's physical replication protocol, as a client of it.
//!
//! ```text
//!   Replication --start--> WalStream --finish--> Replication     the log, as the server writes it
//!        |----base_backup--> BaseStream                           files of the server, as one tar
//! ```
//!
//! Must hold: nothing that a server sends can make this panic or grow without bound. Waiting for the next message can be given up
//! at any time without losing one; sending cannot.
//!
//! Left to others: how a server is reached, and how its data is used.

mod base;
mod wal;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use pandastack_postgres::{Backend, ByteStream, Credentials, LoginError, Session, SqlError, row};
use postgres_protocol::message::frontend;

pub use base::{BasePart, BaseStream};
#[cfg(feature = "fuzz")]
pub(crate) use wal::parse as parse_wal;
pub use wal::{ReplicationStart, StreamEnd, WalMessage, WalStream};

use crate::limits::{COMMAND_WAIT, MESSAGE_BYTES_MAX, ROWS_MAX};
use crate::position::{Lsn, Timeline};

/// SQLSTATE of a slot that exists already.
const DUPLICATE_OBJECT: &str = "42710";
/// SQLSTATE of a missing file: with replication, a segment that no slot retained.
const UNDEFINED_FILE: &str = "58P01";
/// The server's notation for [`SEGMENT_BYTES`](crate::limits::SEGMENT_BYTES).
const SEGMENT_SIZE: &str = "16MB";
/// Longest name of a slot that the server accepts.
const SLOT_CHARS_MAX: usize = 63;

/// Credentials and slot for replication.
#[derive(Debug, Clone)]
pub struct Login {
    /// A role with the attribute `REPLICATION`.
    pub user: String,
    /// The role's password.
    pub password: Password,
    /// The slot that keeps the log until it is archived.
    pub slot: Slot,
}

/// A password. It is never printed.
#[derive(Clone)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The name of a replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot(String);

impl Slot {
    /// Small letters, digits and `_`.
    pub fn new(name: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let sound = !name.is_empty() && name.len() <= SLOT_CHARS_MAX && name.bytes().all(fits);
        sound.then(|| Self(name.to_owned()))
    }
}

/// Errors of a replication connection.
#[derive(Debug, thiserror::Error)]
pub enum ReplicationError {
    /// No session.
    #[error("the replication login failed")]
    Login(#[source] LoginError),
    /// The server refused a command.
    #[error("the server refused {command}")]
    Refused {
        /// First words of the command.
        command: &'static str,
        /// The server's answer.
        #[source]
        reason: Box<SqlError>,
    },
    /// The requested log is gone.
    #[error("the server no longer has the WAL from {from} on; take a new base backup")]
    LogGone {
        /// The requested value.
        from: Lsn,
        /// The server's answer.
        #[source]
        reason: Box<SqlError>,
    },
    /// The connection broke.
    #[error("the replication connection broke")]
    Broken(#[source] std::io::Error),
    /// An answer that cannot be.
    #[error("the server responded to {command} with {what}; PostgreSQL 15 or later is required")]
    Odd {
        /// First words of the command.
        command: &'static str,
        /// Kind of the received message.
        what: &'static str,
    },
    /// No answer in time.
    #[error("the server did not respond to {0} within {wait_s} s", wait_s = COMMAND_WAIT.as_secs())]
    Late(&'static str),
    /// An unsupported segment size.
    #[error(
        "the server has WAL segments of {0}, but backups need {SEGMENT_SIZE}; run initdb without --wal-segsize"
    )]
    SegmentSize(String),
    /// Files outside the data directory.
    #[error(
        "the server has {0} tablespaces outside its data directory, which base backups do not support; drop them"
    )]
    Tablespaces(usize),
}

impl From<LoginError> for ReplicationError {
    fn from(error: LoginError) -> Self {
        ReplicationError::Login(error)
    }
}

impl From<std::io::Error> for ReplicationError {
    fn from(error: std::io::Error) -> Self {
        ReplicationError::Broken(error)
    }
}

/// Identification of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Number of the cluster, the same in all its copies.
    pub id: String,
    /// The server's timeline.
    pub timeline: Timeline,
    /// Position up to which its log is durable.
    pub flushed: Lsn,
    /// Version, such as `16.14`.
    pub version: String,
}

/// An open replication session. It ends when dropped.
pub struct Replication {
    session: Session,
}

impl Replication {
    /// Logs in over a stream that leads to the server.
    pub async fn open(stream: Box<dyn ByteStream>, login: &Login) -> Result<Self, ReplicationError> {
        let credentials = Credentials {
            user: login.user.clone(),
            password: login.password.0.clone(),
            // Without meaning for physical replication, and checked for nothing.
            database: "replication".to_owned(),
            parameters: BTreeMap::from([
                ("replication".to_owned(), "true".to_owned()),
                ("application_name".to_owned(), "pandastack-backup".to_owned()),
            ]),
        };
        let session = Session::over(Backend::uncounted(stream), &credentials).await?;
        Ok(Self { session })
    }

    /// Identifies the server. Refuses a server with another segment size.
    pub async fn identify(&mut self) -> Result<System, ReplicationError> {
        let size = self.one_row("SHOW", "SHOW wal_segment_size").await?;
        match size.first() {
            Some(Some(size)) if size == SEGMENT_SIZE => {}
            size => return Err(ReplicationError::SegmentSize(size.cloned().flatten().unwrap_or_default())),
        }
        const COMMAND: &str = "IDENTIFY_SYSTEM";
        let row = self.one_row(COMMAND, COMMAND).await?;
        let parse = || match row.as_slice() {
            [Some(id), Some(timeline), Some(flushed), ..] => {
                Some((id.clone(), Timeline(timeline.parse().ok()?), flushed.parse().ok()?))
            }
            _ => None,
        };
        let (id, timeline, flushed) =
            parse().ok_or_else(|| unexpected_response(COMMAND, "a row that does not fit"))?;
        let version = self.session.parameter("server_version").unwrap_or_default();
        Ok(System { id, timeline, flushed, version })
    }

    /// Creates the slot, which retains the log from now on. An existing slot is kept; this checks
    /// for it first, because a server logs an error for every duplicate slot, where its owner reads
    /// it.
    pub async fn ensure_slot(&mut self, slot: &Slot) -> Result<(), ReplicationError> {
        if self.slot_position(slot).await?.is_some() {
            return Ok(());
        }
        const COMMAND: &str = "CREATE_REPLICATION_SLOT";
        let command = format!("{COMMAND} {} PHYSICAL (RESERVE_WAL)", slot.0);
        match self.command(COMMAND, &command).await {
            Err(ReplicationError::Refused { reason, .. }) if reason.code == DUPLICATE_OBJECT => Ok(()),
            made => made.map(drop),
        }
    }

    /// Removes the slot: the server no longer keeps its log for it.
    pub async fn drop_slot(&mut self, slot: &Slot) -> Result<(), ReplicationError> {
        const COMMAND: &str = "DROP_REPLICATION_SLOT";
        self.command(COMMAND, &format!("{COMMAND} {} WAIT", slot.0)).await.map(drop)
    }

    /// The position from which the slot retains the log.
    pub async fn slot_position(&mut self, slot: &Slot) -> Result<Option<(Timeline, Lsn)>, ReplicationError> {
        const COMMAND: &str = "READ_REPLICATION_SLOT";
        let row = self.one_row(COMMAND, &format!("{COMMAND} {}", slot.0)).await?;
        match row.as_slice() {
            [_, Some(lsn), Some(timeline)] => {
                let parsed = timeline.parse().ok().zip(lsn.parse().ok());
                let (timeline, lsn) =
                    parsed.ok_or_else(|| unexpected_response(COMMAND, "a row that does not fit"))?;
                Ok(Some((Timeline(timeline), lsn)))
            }
            _ => Ok(None),
        }
    }

    /// The history file of a timeline.
    pub async fn timeline_history(&mut self, timeline: Timeline) -> Result<String, ReplicationError> {
        const COMMAND: &str = "TIMELINE_HISTORY";
        let row = self.one_row(COMMAND, &format!("{COMMAND} {}", timeline.0)).await?;
        row.into_iter().nth(1).flatten().ok_or_else(|| unexpected_response(COMMAND, "no content"))
    }

    /// Streams the log from a position, or returns the next timeline if this one ended there.
    pub async fn start(
        mut self,
        slot: &Slot,
        timeline: Timeline,
        from: Lsn,
    ) -> Result<ReplicationStart, ReplicationError> {
        const COMMAND: &str = "START_REPLICATION";
        let command = format!("{COMMAND} SLOT {} PHYSICAL {from} TIMELINE {}", slot.0, timeline.0);
        self.send_query(&command).await?;
        loop {
            let (kind, body) = self.receive_in_time(COMMAND).await?;
            match kind {
                b'W' => return Ok(ReplicationStart::Streaming(WalStream::new(self, from))),
                b'T' => return Ok(ReplicationStart::Ended(StreamEnd::collect(self).await?)),
                b'E' => return Err(refused_log(from, SqlError::parse(&body))),
                b'N' | b'S' => {}
                _ => return Err(unexpected_response(COMMAND, "something else than a stream")),
            }
        }
    }

    /// Streams a copy of all files. The server makes a checkpoint first.
    pub async fn base_backup(mut self, label: &str) -> Result<BaseStream, ReplicationError> {
        let label = label.replace('\'', "''");
        // The log is archived by itself, so it is neither in the tar nor waited for.
        let command = format!(
            "BASE_BACKUP (LABEL '{label}', PROGRESS, CHECKPOINT 'fast', WAL false, WAIT false, MANIFEST 'yes')"
        );
        self.send_query(&command).await?;
        Ok(BaseStream::new(self))
    }

    /// Closes the session.
    pub async fn close(self) {
        self.session.close().await;
    }

    async fn one_row(
        &mut self,
        name: &'static str,
        command: &str,
    ) -> Result<Vec<Option<String>>, ReplicationError> {
        let rows = self.command(name, command).await?;
        rows.into_iter().next().ok_or_else(|| unexpected_response(name, "no row"))
    }

    async fn command(
        &mut self,
        name: &'static str,
        command: &str,
    ) -> Result<Vec<Vec<Option<String>>>, ReplicationError> {
        self.send_query(command).await?;
        self.collect_rows(name).await
    }

    /// Rows up to the server's readiness for the next command.
    async fn collect_rows(
        &mut self,
        name: &'static str,
    ) -> Result<Vec<Vec<Option<String>>>, ReplicationError> {
        let (mut rows, mut failed) = (Vec::new(), None);
        loop {
            let (kind, body) = self.receive_in_time(name).await?;
            match kind {
                b'D' if rows.len() < ROWS_MAX => {
                    rows.push(row(body).ok_or_else(|| unexpected_response(name, "half a row"))?)
                }
                b'D' => return Err(unexpected_response(name, "too many rows")),
                b'E' => failed = Some(SqlError::parse(&body)),
                b'Z' => {
                    return match failed {
                        Some(error) => {
                            Err(ReplicationError::Refused { command: name, reason: Box::new(error) })
                        }
                        None => Ok(rows),
                    };
                }
                _ => {}
            }
        }
    }

    async fn send_query(&mut self, command: &str) -> Result<(), ReplicationError> {
        let mut out = BytesMut::new();
        frontend::query(command, &mut out)?;
        Ok(self.session.send(&out).await?)
    }

    async fn receive_in_time(&mut self, name: &'static str) -> Result<(u8, Bytes), ReplicationError> {
        let received = tokio::time::timeout(COMMAND_WAIT, self.session.receive(MESSAGE_BYTES_MAX)).await;
        Ok(received.map_err(|_| ReplicationError::Late(name))??)
    }
}

fn refused_log(from: Lsn, error: SqlError) -> ReplicationError {
    let reason = Box::new(error);
    match reason.code.as_str() {
        UNDEFINED_FILE => ReplicationError::LogGone { from, reason },
        _ => ReplicationError::Refused { command: "START_REPLICATION", reason },
    }
}

fn unexpected_response(command: &'static str, what: &'static str) -> ReplicationError {
    ReplicationError::Odd { command, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_slot_names_need_no_quoting() {
        assert!(Slot::new("pandastack_1").is_some());
        for name in ["", "A", "a-b", "a b", "a;b", &"a".repeat(64)] {
            assert_eq!(Slot::new(name), None, "{name}");
        }
    }
}
