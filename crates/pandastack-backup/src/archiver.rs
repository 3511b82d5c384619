//! One task per database that archives its WAL.
//!
//! ```text
//!   connect -> login -> slot -> stream from where the archive ends --> receive, put away, confirm ...
//!      ^                                                                   |
//!      +------------ pause, doubling ------------- any failure ------------+        stop: put away, confirm, goodbye
//! ```
//!
//! Must hold: log is confirmed to the server as durable only after the archive has it, so after any
//! failure on either side the slot retains the log and the next session continues without a gap.
//! The archive itself is the only record of where it ends. While the archive is down nothing is
//! collected in memory: the connection is closed and opened again. Log that the server has removed,
//! because its slot was removed or reached its limit, leaves a gap that the status and the catalog
//! report; later log is archived for the next base backup.
//!
//! Callers provide the connection to the server, schedule base backups, and delete.

mod session;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_postgres::ByteStream;
use pandastack_types::chain;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::archive::{Archive, ArchiveError};
use crate::limits::{RETRY_WAIT, RETRY_WAIT_MAX, STOP_WAIT};
use crate::log_writer::{LogError, LogWriter};
use crate::position::{Lsn, Timeline};
use crate::replication::{Login, ReplicationError};
use crate::window::Gap;

/// Added to the reason of a failure when its server fell asleep with log that the archive has not: nothing is archived before it wakes.
const ASLEEP_BEHIND: &str =
    "; the database is asleep with WAL that is not archived; fix the cause, then wake it";

/// Progress of archiving.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Everything before it is in the archive. `None` before the first look into the archive.
    pub last_archived: Option<(Timeline, Lsn)>,
    /// When this task last put an object into the archive.
    pub last_archived_at: Option<Timestamp>,
    /// Every commit up to this time of the server's is in the archive, also if there was none for long.
    pub complete_until: Option<Timestamp>,
    /// Bytes that the server has and the archive has not.
    pub lag_bytes: u64,
    /// Log that the server threw away before it was archived. Nothing after it can be restored before there is a new base backup.
    pub gap: Option<Gap>,
    /// A session is open.
    pub connected: bool,
    /// Time since which archiving fails. `None` while it works, or while the server sleeps and its
    /// log is archived.
    pub failing_since: Option<Timestamp>,
    /// The reason, as a sentence. Kept until the archive works again.
    pub last_error: Option<String>,
}

/// Reason why no connection to a server is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The machine sleeps. This is not a failure: a sleeping machine writes nothing.
    #[error("the database is asleep")]
    Asleep,
    /// The server cannot be reached; the text is a full sentence.
    #[error("{0}")]
    Failed(String),
}

/// Reason why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum ArchiverError {
    /// No way to the server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// The log, or the archive.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server is silent.
    #[error("the server sent nothing for {} s", crate::limits::SILENCE_MAX.as_secs())]
    Silent,
    /// The server ended the stream.
    #[error("the server ended replication, because it is stopping")]
    Ended,
}

impl From<ArchiveError> for ArchiverError {
    fn from(error: ArchiveError) -> Self {
        ArchiverError::Log(error.into())
    }
}

/// A running archiver. It is stopped with the token that it was started with; dropping it stops it too.
pub struct Archiver {
    status: watch::Receiver<Status>,
    wake: Arc<Notify>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Archiver {
    /// Starts archiving. `connect` gives a stream to the server whenever one is needed; it may wait.
    pub fn start<C, F>(login: Login, archive: Archive, connect: C, stop: CancellationToken) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Box<dyn ByteStream>, ConnectError>> + Send + 'static,
    {
        let (status, watched) = watch::channel(Status::default());
        let wake = Arc::new(Notify::new());
        let stop = stop.child_token();
        let work = Work { login, archive, status, stop: stop.clone(), writer: None, log_gone: false };
        let task = tokio::spawn(work.run(connect, Arc::clone(&wake)));
        Self { status: watched, wake, stop, task: Some(task) }
    }

    /// Progress now and from now on.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Ends a pause: the machine is awake, or the archive is back.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Stops: archives everything that the server has first, for [`STOP_WAIT`] at most. Returns
    /// when the task has ended.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(mut task) = self.task.take() {
            // A task that waits for an unresponsive store or server is aborted. Like a crash, that
            // loses no data.
            if tokio::time::timeout(STOP_WAIT * 2, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// State of the task.
struct Work {
    login: Login,
    archive: Archive,
    status: watch::Sender<Status>,
    stop: CancellationToken,
    /// Writer at the end of the archive, once that is known.
    writer: Option<LogWriter>,
    /// The server no longer has the log that the archive needs next: archiving starts over after a
    /// gap.
    log_gone: bool,
}

impl Work {
    async fn run<C, F>(mut self, connect: C, wake: Arc<Notify>)
    where
        C: Fn() -> F,
        F: Future<Output = Result<Box<dyn ByteStream>, ConnectError>>,
    {
        let mut pause = RETRY_WAIT;
        while !self.stop.is_cancelled() {
            let before = self.writer.as_ref().map(LogWriter::archived);
            let stream = tokio::select! {
                stream = connect() => stream,
                () = self.stop.cancelled() => break,
            };
            let ended = match stream {
                Ok(stream) => self.session(stream).await,
                Err(error) => Err(error.into()),
            };
            let Err(error) = ended else { break };
            self.log_gone = matches!(error, ArchiverError::Replication(ReplicationError::LogGone { .. }));
            self.note_failure(&error);
            // Progress means that it works in principle: the next failure is a new one.
            pause = if self.writer.as_ref().map(LogWriter::archived) == before {
                longer(pause)
            } else {
                RETRY_WAIT
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = wake.notified() => pause = RETRY_WAIT,
                () = self.stop.cancelled() => {}
            }
        }
        self.status.send_modify(|status| status.connected = false);
    }

    fn note_failure(&self, error: &ArchiverError) {
        // All log of a stopped or sleeping server is archived, or its slot retains it for the next
        // session.
        let asleep = matches!(error, ArchiverError::Connect(ConnectError::Asleep));
        let stopped = asleep || matches!(error, ArchiverError::Ended);
        let broke = matches!(error, ArchiverError::Replication(ReplicationError::Broken(_)));
        tracing::debug!(error = %chain(&error), "archiving is paused");
        self.status.send_modify(|status| {
            // A broken connection alone is not a failure yet: the next attempt shows whether the
            // server sleeps or cannot be reached.
            let expected = stopped || (broke && status.connected);
            status.connected = false;
            if !expected {
                status.failing_since.get_or_insert_with(Timestamp::now);
                status.last_error = Some(chain(&error));
            } else if status.lag_bytes == 0 {
                (status.failing_since, status.last_error) = (None, None);
            } else if let Some(why) = status.last_error.as_mut().filter(|_| asleep)
                && !why.ends_with(ASLEEP_BEHIND)
            {
                // The log that failed to be archived stays unarchived for as long as the server
                // sleeps.
                why.push_str(ASLEEP_BEHIND);
            }
        });
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(RETRY_WAIT_MAX)
}

#[cfg(test)]
mod tests;
