//! Keeps the logs that machines write bounded on disk.
//!
//! A machine's process appends to its console file and to its own log, and a guest decides how much. When a
//! file has taken more than [`limits::LOG_FILE_BYTES_MAX`], its oldest bytes are returned to the file
//! system. Offsets stay as they are (the space becomes a hole), so neither the writer nor anyone who
//! follows has to know.
//!
//! One inotify instance serves all machines. A file that was written to is checked a second later
//! and watched again after that: a flood costs the agent one check a second, however much it
//! writes.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pandastack_types::{chain, limits};
use rustix::fs::{FallocateFlags, fallocate, inotify};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// Time between a write and the check of its file.
const CHECK_AFTER: Duration = Duration::from_secs(1);
/// Bytes of events read at once.
const EVENTS_BYTES: usize = 4096;

/// The files that are kept bounded.
pub(crate) struct LogLimit {
    inotify: OwnedFd,
    /// Files by watch descriptor.
    files: Mutex<HashMap<i32, PathBuf>>,
}

impl LogLimit {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        Ok(Arc::new(Self { inotify, files: Mutex::default() }))
    }

    /// Limits a file for as long as it exists.
    pub(crate) fn add(&self, path: PathBuf) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let once = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ONESHOT;
        match inotify::add_watch(&self.inotify, &path, once) {
            Ok(descriptor) => drop(files.insert(descriptor, path)),
            // The process has ended, and its log is gone.
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => {
                tracing::warn!(
                    log = %path.display(), error = %chain(&error),
                    "cannot limit the size of a log; raise fs.inotify.max_user_watches"
                );
            }
        }
    }

    /// Works until the agent stops.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        if let Err(error) = self.serve(&stop).await {
            tracing::error!(error = %chain(&error), "the size of machine logs is no longer limited");
        }
    }

    async fn serve(&self, stop: &CancellationToken) -> io::Result<()> {
        let readable = self.inotify.try_clone()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types that could lie about their descriptor"
        )]
        let readable = AsyncFd::new(readable)?;
        loop {
            let mut ready = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                ready = readable.readable() => ready?,
            };
            let written = self.take_written();
            ready.clear_ready();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(CHECK_AFTER) => {}
            }
            // Files written in the meantime are not watched again yet, so this checks all of them.
            for path in written {
                if let Err(error) = trim(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(
                        log = %path.display(), error = %chain(&error),
                        "cannot trim a log"
                    );
                }
                self.add(path);
            }
        }
    }

    fn take_written(&self) -> Vec<PathBuf> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut written = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = events.next() {
            // A watch is removed once it fires, and also, without firing, when its file is removed.
            let path = files.remove(&event.wd());
            if event.events().contains(inotify::ReadFlags::MODIFY) {
                written.extend(path);
            }
        }
        written
    }
}

/// Frees the oldest bytes of a log that is too large.
fn trim(path: &Path) -> io::Result<()> {
    const BLOCK: u64 = 4096;
    let file = OpenOptions::new().write(true).open(path)?;
    let meta = file.metadata()?;
    if meta.blocks() * 512 <= limits::LOG_FILE_BYTES_MAX {
        return Ok(());
    }
    let end = meta.len().saturating_sub(limits::LOG_KEPT_BYTES) / BLOCK * BLOCK;
    if end > 0 {
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, end)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_log_flood_is_trimmed_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        std::fs::write(&path, "").unwrap();
        let limit = LogLimit::new().unwrap();
        limit.add(path.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(Arc::clone(&limit).run(stop.clone()));
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        let line = vec![b'x'; 1024 * 1024];
        // Twice: it has to be armed again after the first time.
        for round in 1..=2_u64 {
            for _ in 0..20 {
                log.write_all(&line).unwrap();
            }
            log.write_all(b"end").unwrap();
            let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
            let begun = Instant::now();
            while taken() > limits::LOG_FILE_BYTES_MAX {
                assert!(begun.elapsed() < Duration::from_secs(20), "still {} bytes", taken());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), round * (20 * 1024 * 1024 + 3));
        }
        assert!(crate::logs::read_tail(&path).ends_with(b"xend"));
        std::fs::remove_file(&path).unwrap();
        stop.cancel();
        task.await.unwrap();
    }
}
