//! The log of a build: bounded, written in batches, followed by whoever wants to.
//!
//! Lines have the form that people know from image builds: `#3 [3/7] RUN make` begins a step, `#3 0.512
//! text` is a line that its command printed after so many seconds, `#3 DONE 2.1s`, `#3 CACHED` or `#3
//! ERROR: ...` ends it. Past [`BUILD_LOG_LINES_MAX`] lines the output of commands is dropped.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use axum::response::Response;
use pandastack_rest::sse;
use pandastack_sandboxes::machine::LineSink;
use pandastack_store::templates::BuildRecord;
use pandastack_types::BuildId;
use pandastack_types::limits::{BUILD_LOG_LINE_BYTES_MAX, BUILD_LOG_LINES_MAX};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::service::Templates;

/// Lines that wait to be written; when it is full, the program that prints waits.
const LINES_QUEUED_MAX: usize = 1024;
/// Lines written at once.
const BATCH_MAX: usize = 256;
/// Lines read at once by a follower.
const LINES_READ_MAX: u32 = 500;

/// A line, and whether it stays when the log is full.
struct Line(String, bool);

/// The writing end of a log.
#[derive(Clone)]
pub(crate) struct Log(mpsc::Sender<Line>);

/// The writer; ends after the last [`Log`] is dropped.
pub(crate) struct LogWriter(JoinHandle<()>);

impl LogWriter {
    /// Waits until everything is written.
    pub(crate) async fn finish(self) {
        if let Err(error) = self.0.await {
            tracing::error!(%error, "the end of a template build's log was not written");
        }
    }
}

impl Log {
    /// Opens the log of a build; lines are appended to what it has.
    pub(crate) async fn open(
        templates: &Arc<Templates>,
        id: &BuildId,
    ) -> pandastack_store::Result<(Self, LogWriter)> {
        let next = templates.store.count_build_log(id).await?;
        let (sender, receiver) = mpsc::channel(LINES_QUEUED_MAX);
        let writer = tokio::spawn(write(Arc::clone(templates), id.clone(), next, receiver));
        Ok((Self(sender), LogWriter(writer)))
    }

    /// Something that the platform says.
    pub(crate) async fn say(&self, line: &str) {
        // The writer ends only after this sender, so nothing is lost but with the process.
        let _ = self.0.send(Line(shortened(line), true)).await;
    }

    /// Begins a step.
    pub(crate) async fn step(&self, number: usize, total: usize, text: &str) -> StepLog {
        let first = text.lines().next().unwrap_or_default();
        self.say(&format!("#{number} [{number}/{total}] {first}")).await;
        StepLog { log: self.clone(), number, began: Instant::now() }
    }
}

/// The log of one step.
pub(crate) struct StepLog {
    log: Log,
    number: usize,
    began: Instant,
}

impl StepLog {
    /// Ends the step.
    pub(crate) async fn end(&self, how: &str) {
        self.log.say(&format!("#{} {how}", self.number)).await;
    }
}

#[async_trait]
impl LineSink for StepLog {
    async fn line(&self, line: &str) {
        // A progress bar rewrites its line; what it came to is what counts.
        let line = line.trim_end_matches('\r');
        let line = line.rsplit('\r').next().unwrap_or(line);
        let line = format!("#{} {:.3} {line}", self.number, self.began.elapsed().as_secs_f64());
        let _ = self.log.0.send(Line(shortened(&line), false)).await;
    }
}

/// A line cut to its limit, without what a store cannot keep.
fn shortened(line: &str) -> String {
    let mut end = line.len().min(BUILD_LOG_LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line[..end].replace('\0', "")
}

/// Writes lines as they come, numbered from `next`.
async fn write(templates: Arc<Templates>, id: BuildId, mut next: u64, mut lines: mpsc::Receiver<Line>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while lines.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let kept = fitting(next, &batch);
        batch.clear();
        if kept.is_empty() {
            // A full log does not take the store's only writer.
            continue;
        }
        match templates.store.append_build_log(&id, next, &kept).await {
            Ok(()) => next += kept.len() as u64,
            Err(error) => tracing::warn!(build = %id, %error, "lines of a template build's log were lost"),
        }
        templates.tell();
    }
}

/// The lines that are kept of a batch: all while there is room, then what the platform says.
fn fitting(next: u64, batch: &[Line]) -> Vec<String> {
    let mut kept = Vec::with_capacity(batch.len());
    for Line(line, ours) in batch {
        let number = next + kept.len() as u64;
        if number < BUILD_LOG_LINES_MAX || *ours {
            kept.push(line.clone());
        } else if number == BUILD_LOG_LINES_MAX {
            kept.push("the log is full: further output is dropped".to_owned());
        }
    }
    kept
}

/// The log as server-sent events, followed until the build is over or what there is.
pub(crate) fn respond(templates: Arc<Templates>, build: BuildRecord, follow: bool) -> Response {
    let news = templates.follow();
    let reader = Reader { templates, build, next: 0, follow, news, ended: false };
    sse::respond(futures::stream::unfold(reader, Reader::next))
}

/// One follower.
struct Reader {
    templates: Arc<Templates>,
    build: BuildRecord,
    next: u64,
    follow: bool,
    news: watch::Receiver<u64>,
    ended: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if self.ended {
                return None;
            }
            self.news.mark_unchanged();
            let (workspace, id) = (&self.build.workspace, &self.build.id);
            let store = &self.templates.store;
            // Looked at before the lines: what was written before the end is then seen.
            let under_way = self.templates.is_running(id)
                || store.build(workspace, id).await.is_ok_and(|now| now.state.is_under_way());
            let lines = store.build_log(id, self.next, LINES_READ_MAX).await.unwrap_or_default();
            if !lines.is_empty() {
                self.next += lines.len() as u64;
                return Some((lines.iter().map(|line| sse::line_frame(line)).collect(), self));
            }
            if !under_way || !self.follow {
                self.ended = true;
                return Some(("event: done\ndata: end\n\n".to_owned(), self));
            }
            tokio::select! {
                _ = self.news.changed() => {}
                () = tokio::time::sleep(sse::COMMENT_EVERY) => return Some((sse::COMMENT.to_owned(), self)),
                () = self.templates.background.shutdown.cancelled() => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_what_the_platform_says() {
        let batch = ["a", "b", "#1 ERROR: x"].map(|text| Line(text.to_owned(), text.starts_with('#')));
        assert_eq!(fitting(0, &batch), ["a", "b", "#1 ERROR: x"]);
        let full = "the log is full: further output is dropped";
        assert_eq!(fitting(BUILD_LOG_LINES_MAX - 1, &batch), ["a", full, "#1 ERROR: x"]);
        assert_eq!(fitting(BUILD_LOG_LINES_MAX + 1, &batch), ["#1 ERROR: x"]);
        assert_eq!(shortened(&"é".repeat(BUILD_LOG_LINE_BYTES_MAX)).len(), BUILD_LOG_LINE_BYTES_MAX);
    }
}
