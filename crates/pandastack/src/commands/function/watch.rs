//! Watches a directory for changes.

use std::path::Path;

use anyhow::Result;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

/// Sends a message for each batch of changes to a file or below a directory.
pub(super) fn watch(source: &Path) -> Result<mpsc::Receiver<()>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    watch_tree(&inotify, source)?;
    let (sender, receiver) = mpsc::channel(1);
    let root = source.to_owned();
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        while let Ok(events) = inotify.read_events() {
            let made_directory = events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_ISDIR));
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

fn watch_tree(inotify: &Inotify, path: &Path) -> Result<()> {
    let flags = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM;
    inotify.add_watch(path, flags)?;
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
