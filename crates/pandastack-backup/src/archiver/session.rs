//! One connection of an archiver, from the login to its end.

use jiff::Timestamp;
use pandastack_postgres::ByteStream;
use tokio::time::Instant;

use super::{ArchiverError, Work};
use crate::layout::Entry;
use crate::limits::{PIECE_WAIT, SILENCE_MAX, STATUS_INTERVAL, STOP_WAIT};
use crate::log_writer::{LogError, LogWriter};
use crate::position::{Lsn, Timeline};
use crate::replication::{Replication, ReplicationStart, StreamEnd, System, WalMessage, WalStream};
use crate::window::Gap;

/// Reason why a session ended.
enum EndReason {
    /// A stop was requested.
    Stop,
    /// The server sends nothing more.
    Done,
}

impl Work {
    /// Archives over one connection. `Ok` only after a requested stop.
    pub(super) async fn session(&mut self, stream: Box<dyn ByteStream>) -> Result<(), ArchiverError> {
        let mut replication = Replication::open(stream, &self.login).await?;
        let system = replication.identify().await?;
        replication.ensure_slot(&self.login.slot).await?;
        let mut writer = match self.writer.take() {
            Some(writer) if self.log_gone => self.begin_after_gap(&mut replication, &system, &writer).await?,
            Some(writer) => writer,
            None => self.find_end(&mut replication, &system).await.inspect_err(|_| self.note_unseen())?,
        };
        self.log_gone = false;
        let mut archived = self.follow(replication, &system, &mut writer).await;
        if matches!(archived, Err(ArchiverError::Replication(_) | ArchiverError::Silent)) {
            // The server may be lost for good, so the received log may be all that is left of it.
            if let Err(error) = writer.flush().await {
                archived = Err(error.into());
            }
            self.note_put(&writer);
        }
        self.writer = Some(writer);
        archived
    }

    /// Reports that the archive could not be read: the lag is unknown until the first successful
    /// read.
    fn note_unseen(&self) {
        self.status.send_modify(|status| status.lag_bytes = status.lag_bytes.max(1));
    }

    /// Finds the end of the archive; an empty archive begins where the slot does.
    async fn find_end(
        &self,
        replication: &mut Replication,
        system: &System,
    ) -> Result<LogWriter, ArchiverError> {
        if let Some(writer) = LogWriter::resume(&self.archive).await? {
            return Ok(writer);
        }
        self.begin_at_slot(replication, system).await
    }

    async fn begin_at_slot(
        &self,
        replication: &mut Replication,
        system: &System,
    ) -> Result<LogWriter, ArchiverError> {
        let slot = replication.slot_position(&self.login.slot).await?;
        let (timeline, from) = slot.unwrap_or((system.timeline, system.flushed));
        if timeline.0 > 1 {
            self.put_history(replication, timeline).await?;
        }
        Ok(LogWriter::begin(self.archive.clone(), timeline, from))
    }

    /// Continues after a gap: the log that the archive needs next is lost, so a new slot retains
    /// the log that follows.
    async fn begin_after_gap(
        &self,
        replication: &mut Replication,
        system: &System,
        ended: &LogWriter,
    ) -> Result<LogWriter, ArchiverError> {
        replication.drop_slot(&self.login.slot).await?;
        replication.ensure_slot(&self.login.slot).await?;
        let writer = self.begin_at_slot(replication, system).await?;
        let gap = Gap { timeline: ended.timeline(), from: ended.archived(), to: writer.archived() };
        tracing::warn!(from = %gap.from, to = %gap.to, "WAL was lost before it was archived; take a base backup");
        self.status.send_modify(|status| status.gap = Some(gap));
        Ok(writer)
    }

    async fn put_history(
        &self,
        replication: &mut Replication,
        timeline: Timeline,
    ) -> Result<(), ArchiverError> {
        let history = replication.timeline_history(timeline).await?;
        self.archive.put(&Entry::History(timeline), Timestamp::now(), history.into()).await?;
        Ok(())
    }

    /// Streams from timeline to timeline.
    async fn follow(
        &self,
        mut replication: Replication,
        system: &System,
        writer: &mut LogWriter,
    ) -> Result<(), ArchiverError> {
        let behind = system.timeline == writer.timeline() && system.flushed < writer.archived();
        if behind || system.timeline < writer.timeline() {
            return Err(LogError::Diverged { at: system.flushed }.into());
        }
        loop {
            let (timeline, from) = (writer.timeline(), writer.rewind());
            let ended = match replication.start(&self.login.slot, timeline, from).await? {
                ReplicationStart::Streaming(mut stream) => {
                    self.note_open(writer, system);
                    match self.receive(&mut stream, writer).await? {
                        EndReason::Stop => {
                            // A session that cannot close in time loses nothing: the slot keeps the rest.
                            let _ = tokio::time::timeout(STOP_WAIT, self.wind_up(stream, writer)).await;
                            return Ok(());
                        }
                        EndReason::Done => self.finish_stream(stream, writer).await?,
                    }
                }
                ReplicationStart::Ended(ended) => ended,
            };
            let StreamEnd { replication: again, next } = ended;
            replication = again;
            let Some((timeline, at)) = next else { return Err(ArchiverError::Ended) };
            self.put_history(&mut replication, timeline).await?;
            writer.switch(timeline, at);
        }
    }

    /// Receives and archives until the server ends the stream, or a stop is requested.
    async fn receive(
        &self,
        stream: &mut WalStream,
        writer: &mut LogWriter,
    ) -> Result<EndReason, ArchiverError> {
        let (mut due, mut heard) = (None, Instant::now());
        let mut status_due = Instant::now();
        loop {
            let next_status = status_due.min(heard + SILENCE_MAX);
            tokio::select! {
                message = stream.next() => {
                    heard = Instant::now();
                    match message? {
                        WalMessage::Done => return Ok(EndReason::Done),
                        message => self.take(message, stream, writer).await?,
                    }
                    due = if writer.is_waiting() { due.or(Some(heard + PIECE_WAIT)) } else { None };
                }
                () = at(due) => {
                    self.flush_and_confirm(stream, writer).await?;
                    due = None;
                }
                () = tokio::time::sleep_until(next_status) => {
                    if heard.elapsed() >= SILENCE_MAX {
                        return Err(ArchiverError::Silent);
                    }
                    // The reply shows that the server is alive and how far its log goes.
                    stream.confirm(writer.received(), writer.archived(), true).await?;
                    status_due = Instant::now() + STATUS_INTERVAL;
                }
                () = self.stop.cancelled() => return Ok(EndReason::Stop),
            }
        }
    }

    /// Archives the end of a stream. A stopping server disconnects before it reports the next
    /// timeline.
    async fn finish_stream(
        &self,
        mut stream: WalStream,
        writer: &mut LogWriter,
    ) -> Result<StreamEnd, ArchiverError> {
        writer.flush().await?;
        self.note_archived(writer);
        // If this fails, the next session confirms the position.
        let _ = stream.confirm(writer.received(), writer.archived(), false).await;
        stream.finish().await.map_err(|_| ArchiverError::Ended)
    }

    /// Archives everything that the server has, and closes the session.
    async fn wind_up(&self, mut stream: WalStream, writer: &mut LogWriter) -> Result<(), ArchiverError> {
        let mut flushed = Lsn(0);
        loop {
            self.catch_up(&mut stream, writer, flushed).await?;
            self.flush_and_confirm(&mut stream, writer).await?;
            let mut replication = stream.finish().await?.replication;
            // Queried between two streams: within a stream, replies report the sent log, not the
            // flushed log.
            flushed = replication.identify().await?.flushed;
            if flushed <= writer.received() {
                replication.close().await;
                return Ok(());
            }
            let (timeline, from) = (writer.timeline(), writer.rewind());
            match replication.start(&self.login.slot, timeline, from).await? {
                ReplicationStart::Streaming(again) => stream = again,
                // The rest is on another timeline, which the next session follows.
                ReplicationStart::Ended(ended) => {
                    ended.replication.close().await;
                    return Ok(());
                }
            }
        }
    }

    /// Receives the log that the server has now, and everything before `until`. The server replies
    /// before it looks for more log to send, so one reply proves nothing; a second reply without
    /// log in between means that most likely no more exists.
    async fn catch_up(
        &self,
        stream: &mut WalStream,
        writer: &mut LogWriter,
        until: Lsn,
    ) -> Result<(), ArchiverError> {
        let mut quiet = false;
        stream.confirm(writer.received(), writer.archived(), true).await?;
        loop {
            match stream.next().await? {
                WalMessage::Done => return Ok(()),
                WalMessage::Keepalive { sent_at, .. } => {
                    writer.note_answer(sent_at);
                    if std::mem::replace(&mut quiet, true) && writer.received() >= until {
                        return Ok(());
                    }
                    stream.confirm(writer.received(), writer.archived(), true).await?;
                }
                message => {
                    quiet = false;
                    self.take(message, stream, writer).await?;
                }
            }
        }
    }

    async fn take(
        &self,
        message: WalMessage,
        stream: &mut WalStream,
        writer: &mut LogWriter,
    ) -> Result<(), ArchiverError> {
        match message {
            WalMessage::Data { start, end_of_log, sent_at, bytes } => {
                writer.push(start, bytes)?;
                writer.note_end(end_of_log);
                if writer.received() >= end_of_log {
                    writer.note_complete(sent_at);
                }
                self.status.send_modify(|status| status.lag_bytes = writer.lag_bytes());
                if writer.is_segment_full() {
                    self.flush_and_confirm(stream, writer).await?;
                }
            }
            WalMessage::Keepalive { sent_at, wants_status, .. } => {
                writer.note_answer(sent_at);
                if wants_status {
                    // A server that stops waits for this, so nothing is held back for company.
                    self.flush_and_confirm(stream, writer).await?;
                }
                self.note_archived(writer);
            }
            WalMessage::Done => {}
        }
        Ok(())
    }

    async fn flush_and_confirm(
        &self,
        stream: &mut WalStream,
        writer: &mut LogWriter,
    ) -> Result<(), ArchiverError> {
        writer.flush().await?;
        stream.confirm(writer.received(), writer.archived(), false).await?;
        self.note_archived(writer);
        Ok(())
    }

    fn note_open(&self, writer: &mut LogWriter, system: &System) {
        if system.timeline == writer.timeline() {
            writer.note_end(system.flushed);
        }
        self.status.send_modify(|status| {
            status.connected = true;
            status.last_archived = Some((writer.timeline(), writer.archived()));
            status.lag_bytes = writer.lag_bytes();
        });
    }

    /// Reports the archived position. Something new means that all is well.
    fn note_put(&self, writer: &LogWriter) {
        self.status.send_modify(|status| {
            let archived = Some((writer.timeline(), writer.archived()));
            if status.last_archived != archived {
                status.last_archived_at = Some(Timestamp::now());
                (status.failing_since, status.last_error) = (None, None);
            }
            status.last_archived = archived;
            status.lag_bytes = writer.lag_bytes();
        });
    }

    /// Records that everything received is archived. The error is cleared only once the server's
    /// log has no more to send (`lag_bytes` is 0): a server answers before it sends log.
    fn note_archived(&self, writer: &LogWriter) {
        self.note_put(writer);
        self.status.send_modify(|status| {
            if !writer.is_waiting() {
                status.complete_until = writer.complete_until();
            }
            if !writer.is_waiting() && writer.lag_bytes() == 0 {
                (status.failing_since, status.last_error) = (None, None);
            }
        });
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
