//! Files of a sandbox, streamed in both directions.

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::StreamExt;
use pandastack_guest_proto::client::FileReader;
use pandastack_guest_proto::message::{self as guest, FileKind, FileRead, FileWrite, RawPath};
use pandastack_types::api::{DirectoryListing, FileEntry, FileWritten};
use pandastack_types::limits;

use crate::error::{AgentError, Result};
use crate::sandbox::Lease;

/// Longest path, as in the guest's kernel.
const PATH_BYTES_MAX: usize = 4095;

/// Checks a path of a request: absolute, no NUL, not too long. What it names is the guest's own business.
pub(crate) fn check_path(path: &str) -> Result<()> {
    let refuse = |reason: String| Err(AgentError::BadRequest(reason));
    if !path.starts_with('/') {
        return refuse(format!("`path` must be absolute, such as /tmp/notes.txt; got `{}`", shown(path)));
    }
    if path.contains('\0') {
        return refuse("`path` contains a NUL character".to_owned());
    }
    if path.len() > PATH_BYTES_MAX {
        return refuse(format!("`path` is longer than {PATH_BYTES_MAX} bytes"));
    }
    Ok(())
}

fn shown(path: &str) -> String {
    path.chars().take(80).collect()
}

/// A file's content as a response body, and its size.
pub(crate) async fn read(lease: Lease, path: &str) -> Result<(Body, u64)> {
    check_path(path)?;
    let reader = lease.guest.read_file(FileRead { path: path.into(), ..FileRead::default() }).await?;
    let size = reader.file().size;
    let regular = reader.file().kind == FileKind::File;
    let state = Some((reader, lease));
    let stream = futures::stream::unfold(state, |state: Option<(FileReader, Lease)>| async move {
        let (mut reader, lease) = state?;
        match reader.next().await {
            Ok(Some(bytes)) => Some((Ok::<Bytes, AgentError>(bytes), Some((reader, lease)))),
            Ok(None) => None,
            Err(error) => Some((Err(error.into()), None)),
        }
    });
    // A device or pipe has no length that could be promised.
    Ok((Body::from_stream(stream), if regular { size } else { 0 }))
}

/// Writes a request body to a file, atomically, with parents made.
pub(crate) async fn write(lease: &Lease, path: &str, body: Body) -> Result<FileWritten> {
    check_path(path)?;
    let write = FileWrite { path: path.into(), make_parents: true, ..FileWrite::default() };
    let mut writer = lease.guest.write_file(write).await?;
    let mut stream: BodyDataStream = body.into_data_stream();
    let mut total = 0u64;
    while let Some(chunk) = stream.next().await {
        // Dropping the writer without an end makes the guest discard what came so far.
        let chunk =
            chunk.map_err(|error| AgentError::BadRequest(format!("the upload broke off: {error}")))?;
        total += chunk.len() as u64;
        if total > limits::FILE_BODY_BYTES_MAX {
            return Err(AgentError::TooLarge(format!(
                "the file is larger than {} bytes; upload it in parts",
                limits::FILE_BODY_BYTES_MAX
            )));
        }
        writer.write(&chunk).await?;
    }
    let written = writer.finish().await?;
    Ok(FileWritten { path: path.to_owned(), bytes: written.bytes })
}

pub(crate) async fn list(lease: &Lease, path: &str) -> Result<DirectoryListing> {
    check_path(path)?;
    let mut entries: Vec<FileEntry> = Vec::new();
    for found in lease.guest.list(path).await? {
        entries.push(entry(&join(path, &found.name.to_string_lossy()), found));
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(DirectoryListing { path: path.to_owned(), entries })
}

pub(crate) async fn stat(lease: &Lease, path: &str) -> Result<FileEntry> {
    check_path(path)?;
    let found = lease.guest.stat(RawPath::from(path), false).await?;
    let mut entry = entry(path, found);
    entry.name = path.trim_end_matches('/').rsplit('/').next().unwrap_or("/").to_owned();
    if entry.name.is_empty() {
        entry.name = "/".to_owned();
    }
    Ok(entry)
}

fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

fn entry(path: &str, found: guest::FileEntry) -> FileEntry {
    FileEntry {
        name: found.name.to_string_lossy().into_owned(),
        path: path.to_owned(),
        is_dir: found.kind == FileKind::Directory,
        size: found.size,
        mode: mode_text(found.kind, found.mode),
        mtime: found.mtime_s,
        link_target: found.target.map(|target| target.to_string_lossy().into_owned()),
    }
}

/// Permissions as `ls -l` shows them.
fn mode_text(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Other => '?',
    };
    let bits = (0..9).rev().map(|bit| if mode >> bit & 1 == 1 { b"xwr"[bit % 3] as char } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute() {
        for (path, ok) in [("/a", true), ("a", false), ("", false), ("/a\0", false), ("/ü b/../c", true)] {
            assert_eq!(check_path(path).is_ok(), ok, "{path:?}");
        }
        assert!(check_path(&format!("/{}", "a".repeat(5000))).is_err());
    }

    #[test]
    fn modes_read_like_ls() {
        assert_eq!(mode_text(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o750), "drwxr-x---");
    }

    #[test]
    fn joined_paths_have_one_slash() {
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a/", "b"), "/a/b");
    }
}
