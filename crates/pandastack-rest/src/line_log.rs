//! Logs of long work, such as deployments and builds: bounded, written in batches, and open to
//! followers.
//!
//! Lines go through a bounded channel to one writer, so that a program that prints faster than the
//! store writes waits. A full log accepts only the platform's own lines.
//!
//! Must hold: a follower reads `event: done` only after the last line. A log that cannot be read
//! ends without it, so that the client knows it is not complete.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use axum::response::Response;
use pandastack_types::{Result, chain};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::sse;

/// Lines that wait to be written; when it is full, the program that prints waits.
const LINES_QUEUED_MAX: usize = 1024;
/// Lines written at once.
const BATCH_MAX: usize = 256;
/// Lines read at once by a follower.
const LINES_READ_MAX: u32 = 500;

/// Store of one log's lines.
#[async_trait]
pub trait LineStore: Send + Sync + 'static {
    /// Name of the log, such as `deployment <id>`, for the server's own log.
    fn name(&self) -> String;

    /// Number of lines.
    async fn count(&self) -> Result<u64>;

    /// Appends lines, numbered from `first`, and notifies followers.
    async fn append(&self, first: u64, lines: &[String]) -> Result<()>;

    /// Lines from `first` on, at most `limit`.
    async fn read(&self, first: u64, limit: u32) -> Result<Vec<String>>;

    /// Returns whether more lines may follow. A deleted log has ended.
    async fn is_open(&self) -> Result<bool>;
}

/// The limits of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogLimits {
    /// Number of programs' lines kept.
    pub lines_max: u64,
    /// Bytes of a line; the rest is cut.
    pub line_bytes_max: usize,
    /// The line that reports that the log is full.
    pub full: &'static str,
}

/// A line, and whether it stays when the log is full.
struct Line(String, bool);

/// The writing end of a log.
#[derive(Clone)]
pub struct LineLog {
    lines: mpsc::Sender<Line>,
    limits: LogLimits,
}

/// The writer; ends after the last [`LineLog`] is dropped.
pub struct LogWriter(JoinHandle<()>);

impl LogWriter {
    /// Waits until everything is written.
    pub async fn finish(self) {
        if let Err(error) = self.0.await {
            tracing::error!(%error, "the end of a log was not written");
        }
    }
}

impl LineLog {
    /// Opens a log and appends lines to it.
    pub async fn open(store: impl LineStore, limits: LogLimits) -> Result<(Self, LogWriter)> {
        let next = store.count().await?;
        let (lines, receiver) = mpsc::channel(LINES_QUEUED_MAX);
        let writer = tokio::spawn(write(store, limits, next, receiver));
        Ok((Self { lines, limits }, LogWriter(writer)))
    }

    /// Appends a line that a program printed.
    pub async fn output(&self, line: &str) {
        self.send(line, false).await;
    }

    /// Appends a line of the platform, which is kept even when the log is full.
    pub async fn platform_line(&self, line: &str) {
        self.send(line, true).await;
    }

    async fn send(&self, line: &str, is_ours: bool) {
        // The writer ends only after this sender, so nothing is lost but with the process.
        let _ = self.lines.send(Line(self.limits.shortened(line), is_ours)).await;
    }
}

impl LogLimits {
    /// A line cut to its limit, without characters that a store cannot hold.
    pub fn shortened(&self, line: &str) -> String {
        line[..line.floor_char_boundary(self.line_bytes_max)].replace('\0', "")
    }

    /// The lines to keep of a batch: all until the log is full, then only the platform's.
    fn fitting(&self, next: u64, batch: &[Line]) -> Vec<String> {
        let mut kept = Vec::with_capacity(batch.len());
        for Line(line, is_ours) in batch {
            let number = next + kept.len() as u64;
            if number < self.lines_max || *is_ours {
                kept.push(line.clone());
            } else if number == self.lines_max {
                kept.push(self.full.to_owned());
            }
        }
        kept
    }
}

/// Last state of a line: a progress bar rewrites its line, and only the last state counts.
pub fn last_state(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    line.rsplit('\r').next().unwrap_or(line)
}

/// Writes lines as they arrive, numbered from `next`.
async fn write(store: impl LineStore, limits: LogLimits, mut next: u64, mut lines: mpsc::Receiver<Line>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while lines.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let kept = limits.fitting(next, &batch);
        batch.clear();
        if kept.is_empty() {
            // A full log does not take the store's only writer.
            continue;
        }
        match store.append(next, &kept).await {
            Ok(()) => next += kept.len() as u64,
            Err(error) => {
                tracing::warn!(log = store.name(), error = %chain(&error), "lines of a log were lost")
            }
        }
    }
}

/// Notifies only the followers of a log of its new lines.
pub struct LogNews<K>(Mutex<HashMap<K, watch::Sender<()>>>);

impl<K> Default for LogNews<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> LogNews<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New lines of a log from now on.
    pub fn subscribe(&self, log: K) -> watch::Receiver<()> {
        let mut all = self.lock();
        all.retain(|_, one| one.receiver_count() > 0);
        all.entry(log).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Notifies the followers of a log.
    pub fn notify(&self, log: &K) {
        if let Some(one) = self.lock().get(log) {
            one.send_replace(());
        }
    }
}

/// Events that wake a follower.
pub struct LogChanges {
    /// The log has new lines.
    pub lines: watch::Receiver<()>,
    /// A log may have ended.
    pub ends: watch::Receiver<u64>,
    /// The server stops.
    pub shutdown: CancellationToken,
}

/// A log as server-sent events, from line `first`, counted from 0: the existing lines or, with
/// `follow`, until the log ends.
pub fn respond(store: impl LineStore, changes: LogChanges, first: u64, follow: bool) -> Response {
    let reader = Reader { store, next: first, follow, changes, ended: false };
    sse::respond(futures::stream::unfold(reader, Reader::next))
}

/// One follower.
struct Reader<S> {
    store: S,
    next: u64,
    follow: bool,
    changes: LogChanges,
    ended: bool,
}

impl<S: LineStore> Reader<S> {
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if self.ended {
                return None;
            }
            self.changes.lines.mark_unchanged();
            self.changes.ends.mark_unchanged();
            let lines = match self.read().await {
                Ok(Some(lines)) => lines,
                Ok(None) => {
                    self.ended = true;
                    return Some(("event: done\ndata: end\n\n".to_owned(), self));
                }
                Err(error) => {
                    tracing::warn!(
                        log = self.store.name(), error = %chain(&error),
                        "cannot read a log; its stream ends before the log does"
                    );
                    return None;
                }
            };
            if !lines.is_empty() {
                self.next += lines.len() as u64;
                return Some((lines.iter().map(|line| sse::line_frame(line)).collect(), self));
            }
            tokio::select! {
                _ = self.changes.lines.changed() => {}
                _ = self.changes.ends.changed() => {}
                () = tokio::time::sleep(sse::COMMENT_EVERY) => return Some((sse::COMMENT.to_owned(), self)),
                () = self.changes.shutdown.cancelled() => return None,
            }
        }
    }

    /// The next lines; empty if none has arrived yet, `None` after the last.
    async fn read(&self) -> Result<Option<Vec<String>>> {
        // Checked before the lines are read, so that lines written before the end are not missed.
        let is_open = self.store.is_open().await?;
        let lines = self.store.read(self.next, LINES_READ_MAX).await?;
        Ok(Some(lines).filter(|lines| !lines.is_empty() || (is_open && self.follow)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits = LogLimits { lines_max: 10, line_bytes_max: 64, full: "==> full" };

    #[test]
    fn a_full_log_keeps_platform_lines() {
        let batch = ["a", "b", "==> failed", "c"].map(|text| Line(text.to_owned(), text.starts_with("==>")));
        assert_eq!(LIMITS.fitting(0, &batch), ["a", "b", "==> failed", "c"]);
        assert_eq!(LIMITS.fitting(LIMITS.lines_max - 1, &batch), ["a", "==> full", "==> failed"]);
        assert_eq!(LIMITS.fitting(LIMITS.lines_max + 1, &batch), ["==> failed"]);
    }

    #[test]
    fn long_lines_are_shortened_and_progress_bars_keep_their_last_state() {
        assert_eq!(last_state("10%\r50%\r100%"), "100%");
        assert_eq!(last_state("done\r"), "done");
        assert_eq!(LIMITS.shortened(&"é".repeat(64)).len(), 64);
        assert_eq!(LIMITS.shortened(&format!("x{}", "é".repeat(64))).len(), 63);
        assert_eq!(LIMITS.shortened("a\0b"), "ab");
    }

    /// A log of two lines with an injected failure.
    struct Failing(bool);

    #[async_trait]
    impl LineStore for Failing {
        fn name(&self) -> String {
            "deployment x".to_owned()
        }

        async fn count(&self) -> Result<u64> {
            Ok(2)
        }

        async fn append(&self, _: u64, _: &[String]) -> Result<()> {
            Ok(())
        }

        async fn read(&self, first: u64, _: u32) -> Result<Vec<String>> {
            match first {
                0 => Ok(vec!["a".to_owned(), "b".to_owned()]),
                _ if self.0 => Err(pandastack_types::Error::internal("the store is away")),
                _ => Ok(Vec::new()),
            }
        }

        async fn is_open(&self) -> Result<bool> {
            Ok(false)
        }
    }

    #[tokio::test]
    async fn only_a_complete_log_ends_with_the_end_event() {
        for (fails, expect) in
            [(false, "data: a\n\ndata: b\n\nevent: done\ndata: end\n\n"), (true, "data: a\n\ndata: b\n\n")]
        {
            let (news, ends) = (LogNews::default(), watch::Sender::new(0));
            let changes = LogChanges {
                lines: news.subscribe("x"),
                ends: ends.subscribe(),
                shutdown: CancellationToken::new(),
            };
            let response = respond(Failing(fails), changes, 0, true);
            let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
            assert_eq!(body, expect.as_bytes());
        }
    }
}
