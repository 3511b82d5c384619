//! The first start: creates a workspace, and a key in the data directory.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pandastack_store::Store;
use pandastack_store::clock::now;
use pandastack_types::WorkspaceId;

use crate::auth::new_key;
use crate::serve::ServeError;

/// Creates the workspace and, if the installation has no key yet, a key with all rights, and writes
/// it to `path`.
pub(crate) async fn ensure_first_key(store: &dyn Store, path: &Path) -> Result<(), ServeError> {
    let workspace = WorkspaceId::default_workspace();
    store.ensure_workspace(&workspace, now()).await?;
    if store.count_tokens().await? > 0 {
        return Ok(());
    }
    let mut key = new_key(workspace, "first key".to_owned())
        .map_err(|source| ServeError::DataDir { path: path.to_owned(), source })?;
    key.record.operator = true;
    // The file first: a crash in between leaves a file without a key, and the next start writes both again.
    let (target, text) = (path.to_owned(), format!("{}\n", key.secret));
    let written = tokio::task::spawn_blocking(move || write_private(&target, &text)).await;
    let written = written.unwrap_or_else(|failed| Err(std::io::Error::other(failed)));
    written.map_err(|source| ServeError::DataDir { path: path.to_owned(), source })?;
    store.insert_token(&key.record, None).await?;
    Ok(())
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut temporary = PathBuf::from(path);
    temporary.set_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}
