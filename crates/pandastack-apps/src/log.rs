//! The log of a deployment: bounded, written in batches, followed by whoever wants to.
//!
//! Lines go through a bounded channel to one writer, so that a program that prints faster than the store writes waits.
//! Past [`DEPLOY_LOG_LINES_MAX`] lines only what the platform itself says is kept.

use std::sync::Arc;

use axum::response::Response;
use pandastack_rest::sse;
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_types::DeploymentId;
use pandastack_types::limits::{DEPLOY_LOG_LINE_BYTES_MAX, DEPLOY_LOG_LINES_MAX};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::state::Apps;

/// Lines that wait to be written; when it is full, the program that prints waits.
const LINES_QUEUED_MAX: usize = 1024;
/// Lines written at once.
const BATCH_MAX: usize = 256;
/// Lines read at once by a follower.
const LINES_READ_MAX: u32 = 500;
/// Before what the platform says.
pub(crate) const OURS: &str = "==> ";

/// The writing end of a log.
#[derive(Clone)]
pub(crate) struct Log(mpsc::Sender<String>);

/// The writer; ends after the last [`Log`] is dropped.
pub(crate) struct LogWriter(JoinHandle<()>);

impl LogWriter {
    /// Waits until everything is written.
    pub(crate) async fn finish(self) {
        if let Err(error) = self.0.await {
            tracing::error!(%error, "the end of a deployment's log was not written");
        }
    }
}

impl Log {
    /// Opens the log of a deployment; lines are appended to what it has.
    pub(crate) async fn open(
        apps: &Arc<Apps>,
        id: &DeploymentId,
    ) -> pandastack_store::Result<(Self, LogWriter)> {
        let next = apps.store.count_log(id).await?;
        let (sender, receiver) = mpsc::channel(LINES_QUEUED_MAX);
        let writer = tokio::spawn(write(Arc::clone(apps), id.clone(), next, receiver));
        Ok((Self(sender), LogWriter(writer)))
    }

    /// A line of a program.
    pub(crate) async fn line(&self, line: &str) {
        // The writer ends only after this sender, so nothing is lost but with the process.
        let _ = self.0.send(shortened(line)).await;
    }

    /// Something that the platform says.
    pub(crate) async fn say(&self, sentence: impl AsRef<str>) {
        for part in sentence.as_ref().lines() {
            self.line(&format!("{OURS}{part}")).await;
        }
    }
}

/// Appends one sentence of the platform to a log that nobody writes to.
pub(crate) async fn append(apps: &Apps, id: &DeploymentId, sentence: &str) -> pandastack_store::Result<()> {
    let next = apps.store.count_log(id).await?;
    apps.store.append_log(id, next, &[shortened(&format!("{OURS}{sentence}"))]).await?;
    apps.activity.tell();
    Ok(())
}

/// A line without control characters (colours aside) and cut to its limit.
fn shortened(line: &str) -> String {
    // A progress bar rewrites its line; what it came to is what counts.
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut end = line.len().min(DEPLOY_LOG_LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line[..end].replace('\0', "")
}

/// Writes lines as they come, numbered from `next`.
async fn write(apps: Arc<Apps>, id: DeploymentId, mut next: u64, mut lines: mpsc::Receiver<String>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while lines.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let kept = fitting(next, &batch);
        match apps.store.append_log(&id, next, &kept).await {
            Ok(()) => next += kept.len() as u64,
            Err(error) => tracing::warn!(deployment = %id, %error, "lines of a deployment's log were lost"),
        }
        batch.clear();
        apps.activity.tell();
    }
}

/// The lines that are kept of a batch: all while there is room, then what the platform says.
fn fitting(next: u64, batch: &[String]) -> Vec<String> {
    let mut kept = Vec::with_capacity(batch.len());
    for line in batch {
        let number = next + kept.len() as u64;
        if number < DEPLOY_LOG_LINES_MAX || line.starts_with(OURS) {
            kept.push(line.clone());
        } else if number == DEPLOY_LOG_LINES_MAX {
            kept.push(format!("{OURS}the log is full: further output is dropped"));
        }
    }
    kept
}

/// The log as server-sent events, followed until the deployment is over or what there is.
pub(crate) fn respond(apps: Arc<Apps>, deployment: DeploymentRecord, follow: bool) -> Response {
    let news = apps.activity.follow();
    let reader = Reader { apps, deployment, next: 0, follow, news, ended: false };
    sse::respond(futures::stream::unfold(reader, Reader::next))
}

/// One follower.
struct Reader {
    apps: Arc<Apps>,
    deployment: DeploymentRecord,
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
            let (app, id) = (&self.deployment.app, &self.deployment.id);
            // Looked at before the lines: what was written before the end is then seen. Whoever works on it ends last.
            let in_progress = self.apps.activity.is_running(id)
                || self.apps.store.deployment(app, id).await.is_ok_and(|now| now.status.is_in_progress());
            let lines = self.apps.store.log_lines(id, self.next, LINES_READ_MAX).await.unwrap_or_default();
            if !lines.is_empty() {
                self.next += lines.len() as u64;
                return Some((lines.iter().map(|line| sse::line_frame(line)).collect(), self));
            }
            if !in_progress || !self.follow {
                self.ended = true;
                return Some(("event: done\ndata: end\n\n".to_owned(), self));
            }
            tokio::select! {
                _ = self.news.changed() => {}
                () = tokio::time::sleep(sse::COMMENT_EVERY) => return Some((sse::COMMENT.to_owned(), self)),
                () = self.apps.background.shutdown.cancelled() => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_what_the_platform_says() {
        let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let batch = lines(&["a", "b", "==> failed", "c"]);
        assert_eq!(fitting(0, &batch), batch);
        let full = "==> the log is full: further output is dropped";
        assert_eq!(fitting(DEPLOY_LOG_LINES_MAX - 1, &batch), lines(&["a", full, "==> failed"]));
        assert_eq!(fitting(DEPLOY_LOG_LINES_MAX + 1, &batch), lines(&["==> failed"]));
    }

    #[test]
    fn lines_are_cut_and_progress_bars_come_to_their_end() {
        assert_eq!(shortened("10%\r50%\r100%"), "100%");
        assert_eq!(shortened("done\r"), "done");
        assert_eq!(shortened(&"é".repeat(DEPLOY_LOG_LINE_BYTES_MAX)).len(), DEPLOY_LOG_LINE_BYTES_MAX);
        assert_eq!(shortened(&format!("x{}", "é".repeat(4096))).len(), DEPLOY_LOG_LINE_BYTES_MAX - 1);
    }
}
