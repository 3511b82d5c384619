//! Fault injection: named steps at which a test pauses a server, so that it can kill any process at
//! exactly that point of an operation.
//!
//! ```text
//!   test                                       server
//!   mkfifo <dir>/create.made
//!                                              comes to `create.made`, renames the FIFO to
//!   sees it, kills whomever it wants           `create.made.reached.<pid>.<number>`, opens it to read
//!   opens it to write ------------------------> goes on
//! ```
//!
//! `PANDASTACK_FAULT_DIR` names the directory. A FIFO holds one operation, and later ones pass.
//! Without the variable a point costs nothing. Points stand between two effects that a crash could
//! separate; the end-to-end crash matrix reads their names from the sources and refuses one that it
//! does not try.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pauses here if a test requested it.
pub async fn point(name: &'static str) {
    static DIR: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(dir) = DIR.get_or_init(|| std::env::var_os("PANDASTACK_FAULT_DIR").map(PathBuf::from)) {
        hold(dir, name).await;
    }
}

async fn hold(dir: &Path, name: &'static str) {
    let Some(gate) = take(dir, name) else { return };
    tracing::warn!(name, "a test paused an operation here");
    // Opening a FIFO blocks until its other end is opened.
    if let Err(error) = tokio::fs::File::open(&gate).await {
        tracing::error!(name, %error, "the operation continues");
    }
}

/// Claims the FIFO of a point, if it exists, by renaming it. The new name is unique, so no other
/// process opens it first.
fn take(dir: &Path, name: &str) -> Option<PathBuf> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let number = TAKEN.fetch_add(1, Ordering::Relaxed);
    let gate = dir.join(format!("{name}.reached.{}.{number}", std::process::id()));
    std::fs::rename(dir.join(name), &gate).ok()?;
    Some(gate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(dir: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.to_string_lossy().contains("create.made.reached."))
    }

    #[tokio::test]
    async fn a_held_operation_continues_when_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let fifo = std::process::Command::new("mkfifo").arg(path.join("create.made")).status().unwrap();
        assert!(fifo.success());
        hold(&path, "create").await;
        let held = tokio::spawn({
            let path = path.clone();
            async move { hold(&path, "create.made").await }
        });
        while reached(&path).is_none() {
            tokio::task::yield_now().await;
        }
        hold(&path, "create.made").await;
        assert!(!held.is_finished(), "the first one stands still, a later one passes");
        let gate = reached(&path).unwrap();
        tokio::fs::OpenOptions::new().write(true).open(gate).await.unwrap();
        held.await.unwrap();
    }
}
