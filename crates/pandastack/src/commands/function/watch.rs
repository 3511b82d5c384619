//! Watches a directory for changes.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::Result;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use tokio::sync::mpsc;

/// Buffer size for changes that are read at once.
const BATCH_BYTES: usize = 16 * 1024;

/// Sends a message for each batch of changes to a file or below a directory.
pub(super) fn watch(source: &Path) -> Result<mpsc::Receiver<()>> {
    let inotify = init(CreateFlags::CLOEXEC)?;
    watch_tree(&inotify, source)?;
    let (sender, receiver) = mpsc::channel(1);
    let root = source.to_owned();
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        let mut batch = [MaybeUninit::uninit(); BATCH_BYTES];
        while let Ok(made_directory) = next_batch(&inotify, &mut batch) {
            if made_directory && watch_tree(&inotify, &root).is_err() {
                return;
            }
            // A queued message already covers this change.
            if let Err(mpsc::error::TrySendError::Closed(())) = sender.try_send(()) {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Waits for changes; whether one was of a directory.
fn next_batch(inotify: &OwnedFd, batch: &mut [MaybeUninit<u8>]) -> rustix::io::Result<bool> {
    let mut changes = Reader::new(inotify, batch);
    let mut of_directory = false;
    loop {
        of_directory |= changes.next()?.events().contains(ReadFlags::ISDIR);
        if changes.is_buffer_empty() {
            return Ok(of_directory);
        }
    }
}

fn watch_tree(inotify: &OwnedFd, path: &Path) -> Result<()> {
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM;
    add_watch(inotify, path, flags)?;
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type()?.is_dir() && !hidden && entry.file_name() != "node_modules" {
                watch_tree(inotify, &entry.path())?;
            }
        }
    }
    Ok(())
}
