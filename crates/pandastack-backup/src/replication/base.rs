//! The stream of a base backup.
//!
//! ```text
//!   row: start, timeline | rows: tablespaces | copy of: n(ew archive) d(ata)... m(anifest) d(ata)... p(rogress) | row: stop, timeline
//! ```

use bytes::{Buf, Bytes};
use pandastack_postgres::{SqlError, row};

use super::{Replication, ReplicationError, unexpected_response};
use crate::limits::{MESSAGE_BYTES_MAX, ROWS_MAX};
use crate::position::{Lsn, Timeline};

const COMMAND: &str = "BASE_BACKUP";

/// A part of a base backup, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BasePart {
    /// Position from which the log is needed.
    Begin {
        /// Position.
        start: Lsn,
        /// Line of history.
        timeline: Timeline,
    },
    /// Bytes of the tar.
    Tar(Bytes),
    /// Bytes of the server's list of files, after the tar.
    Manifest(Bytes),
    /// Bytes that the server has read by now.
    Progress(u64),
    /// Up to where the log is needed.
    End {
        /// Position.
        stop: Lsn,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArchivePosition {
    Rows,
    Tar,
    Manifest,
    After,
}

/// A copy of all files of a server.
pub struct BaseStream {
    replication: Replication,
    place: ArchivePosition,
    /// Before the copy: where it starts, then tablespaces. After it: where it stops.
    rows: Vec<Vec<Option<String>>>,
}

impl BaseStream {
    pub(super) fn new(replication: Replication) -> Self {
        Self { replication, place: ArchivePosition::Rows, rows: Vec::new() }
    }

    /// The next part; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<BasePart>, ReplicationError> {
        loop {
            // The checkpoint before the first byte, and slow disks after it, take their time.
            let (kind, body) = self.replication.session.receive(MESSAGE_BYTES_MAX).await?;
            match kind {
                b'D' if self.rows.len() < ROWS_MAX => {
                    self.rows.push(row(body).ok_or_else(|| unexpected_response(COMMAND, "half a row"))?);
                }
                b'D' => return Err(unexpected_response(COMMAND, "too many rows")),
                b'H' => return self.begin().map(Some),
                b'd' => {
                    if let Some(part) = self.copied(body)? {
                        return Ok(Some(part));
                    }
                }
                b'c' => self.place = ArchivePosition::After,
                b'C' if self.place == ArchivePosition::After && !self.rows.is_empty() => {
                    let (stop, _) = position(&std::mem::take(&mut self.rows))?;
                    return Ok(Some(BasePart::End { stop }));
                }
                b'E' => {
                    let reason = Box::new(SqlError::parse(&body));
                    return Err(ReplicationError::Refused { command: COMMAND, reason });
                }
                b'Z' => return Ok(None),
                _ => {}
            }
        }
    }

    fn begin(&mut self) -> Result<BasePart, ReplicationError> {
        let rows = std::mem::take(&mut self.rows);
        let (start, timeline) = position(&rows)?;
        // After the position one row for each tablespace; the data directory's own has no number.
        let outside = rows.iter().skip(1).filter(|row| row.first().is_some_and(Option::is_some)).count();
        if outside > 0 {
            return Err(ReplicationError::Tablespaces(outside));
        }
        Ok(BasePart::Begin { start, timeline })
    }

    fn copied(&mut self, mut body: Bytes) -> Result<Option<BasePart>, ReplicationError> {
        match (body.try_get_u8().map_err(|_| unexpected_response(COMMAND, "an empty message"))?, self.place) {
            (b'n', ArchivePosition::Rows) => self.place = ArchivePosition::Tar,
            (b'n', _) => return Err(unexpected_response(COMMAND, "a second tar")),
            (b'm', ArchivePosition::Tar) => self.place = ArchivePosition::Manifest,
            (b'd', ArchivePosition::Tar) => return Ok(Some(BasePart::Tar(body))),
            (b'd', ArchivePosition::Manifest) => return Ok(Some(BasePart::Manifest(body))),
            (b'p', _) => {
                let bytes = body.try_get_u64().map_err(|_| unexpected_response(COMMAND, "half a number"))?;
                return Ok(Some(BasePart::Progress(bytes)));
            }
            _ => return Err(unexpected_response(COMMAND, "parts out of order")),
        }
        Ok(None)
    }

    /// Ends the session.
    pub async fn close(self) {
        self.replication.close().await;
    }
}

fn position(rows: &[Vec<Option<String>>]) -> Result<(Lsn, Timeline), ReplicationError> {
    let parse = || match rows.first()?.as_slice() {
        [Some(lsn), Some(timeline), ..] => Some((lsn.parse().ok()?, Timeline(timeline.parse().ok()?))),
        _ => None,
    };
    parse().ok_or_else(|| unexpected_response(COMMAND, "no position"))
}
