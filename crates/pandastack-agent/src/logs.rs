//! The console log of a sandbox.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use axum::response::sse::Event;
use futures::Stream;
use pandastack_types::limits;
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use crate::error::{AgentError, Result};

/// Longest line of a followed log; a longer one is cut in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of events read at once.
const EVENTS_BYTES: usize = 1024;

/// Reads the end of a log, starting at a line. A missing file is an empty log.
pub(crate) fn read_tail(path: &Path) -> Vec<u8> {
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let start = file.metadata().map_or(0, |meta| meta.len()).saturating_sub(limits::LOG_BYTES_MAX);
    let mut text = Vec::new();
    let read = file
        .seek(SeekFrom::Start(start))
        .and_then(|_| file.take(limits::LOG_BYTES_MAX).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    match text.iter().position(|byte| *byte == b'\n') {
        Some(newline) if start > 0 => text.split_off(newline + 1),
        _ => text,
    }
}

/// A log as it grows.
pub(crate) struct Follower {
    file: File,
    /// An inotify instance: readable when the file has changed.
    changes: AsyncFd<OwnedFd>,
    /// An incomplete line.
    line: Vec<u8>,
    /// Bytes after it.
    rest: Vec<u8>,
}

impl Follower {
    /// Follows from the last [`limits::LOG_BYTES_MAX`] on.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let system = |error: rustix::io::Errno| AgentError::io("follow", path)(error.into());
        let mut file = File::open(path).map_err(AgentError::io("open", path))?;
        let changes = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC);
        let changes = changes.map_err(system)?;
        let watched = inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&changes, path, watched).map_err(system)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types that could lie about their descriptor"
        )]
        let changes = AsyncFd::new(changes).map_err(AgentError::io("follow", path))?;
        let start = file.metadata().map_or(0, |meta| meta.len()).saturating_sub(limits::LOG_BYTES_MAX);
        file.seek(SeekFrom::Start(start)).map_err(AgentError::io("read", path))?;
        Ok(Self { file, changes, line: Vec::new(), rest: Vec::new() })
    }

    /// Events with one line each, until the reader disconnects, the log is removed, or the agent
    /// stops.
    pub(crate) fn events(
        self,
        stop: CancellationToken,
    ) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
        futures::stream::unfold((self, stop), |(mut follower, stop)| async move {
            let line = tokio::select! {
                () = stop.cancelled() => None,
                line = follower.next_line() => line,
            }?;
            let data = serde_json::json!({ "line": String::from_utf8_lossy(&line) });
            Some((Ok(Event::default().data(crate::process::events::ascii_json(&data))), (follower, stop)))
        })
    }

    /// Skips bytes that were cut before they were read, and reports the gap.
    fn skip_cut(&mut self) -> std::io::Result<()> {
        let (at, end) = (self.file.stream_position()?, self.file.metadata()?.len());
        let behind = end.saturating_sub(at);
        if behind > limits::LOG_KEPT_BYTES {
            let start = end - limits::LOG_BYTES_MAX;
            self.file.seek(SeekFrom::Start(start))?;
            self.line.clear();
            self.rest =
                format!("[{} bytes of this log came too fast and were left out]\n", start - at).into();
        }
        Ok(())
    }

    async fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(newline) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(newline + 1);
                self.rest.pop();
                self.line.append(&mut self.rest);
                self.rest = rest;
                return Some(std::mem::take(&mut self.line));
            }
            self.line.append(&mut self.rest);
            if self.line.len() >= LINE_BYTES_MAX {
                return Some(std::mem::take(&mut self.line));
            }
            self.skip_cut().ok()?;
            if !self.rest.is_empty() {
                continue;
            }
            let mut bytes = vec![0; READ_BYTES];
            let count = self.file.read(&mut bytes).ok()?;
            bytes.truncate(count);
            self.rest = bytes;
            if count == 0 && !self.wait().await {
                return None;
            }
        }
    }

    /// Waits until the file changes; false if it was removed.
    async fn wait(&mut self) -> bool {
        let Ok(mut ready) = self.changes.readable().await else { return false };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = inotify::Reader::new(ready.get_inner(), &mut buffer);
        let mut is_there = true;
        while let Ok(event) = events.next() {
            is_there &= !event.events().contains(inotify::ReadFlags::DELETE_SELF);
        }
        ready.clear_ready();
        is_there
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn followed_lines_are_complete_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        std::fs::write(&path, "one\ntw").unwrap();
        assert_eq!(read_tail(&path), b"one\ntw");
        let mut follower = Follower::open(&path).unwrap();
        assert_eq!(follower.next_line().await.unwrap(), b"one");
        let writer = tokio::spawn(async move {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"o\nthree\n").unwrap();
            path
        });
        assert_eq!(follower.next_line().await.unwrap(), b"two");
        assert_eq!(follower.next_line().await.unwrap(), b"three");
        std::fs::remove_file(writer.await.unwrap()).unwrap();
        drop(follower);
    }

    #[tokio::test]
    async fn a_lagging_log_follower_is_notified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        std::fs::write(&path, "first\n").unwrap();
        let mut follower = Follower::open(&path).unwrap();
        let mut flood = b"x".repeat(usize::try_from(limits::LOG_KEPT_BYTES).unwrap() + 10);
        flood.extend(b"\nlast\n");
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&flood).unwrap();
        let told = String::from_utf8(follower.next_line().await.unwrap()).unwrap();
        assert!(told.contains("left out"), "{told}");
        while follower.next_line().await.unwrap() != b"last" {}
    }

    #[test]
    fn a_missing_log_is_empty() {
        assert!(read_tail(Path::new("/nonexistent/console.log")).is_empty());
    }
}
