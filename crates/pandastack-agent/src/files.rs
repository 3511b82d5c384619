//! Files of a sandbox, streamed in both directions.

use axum::body::{Body, BodyDataStream};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use pandastack_guest_proto::client::{FileReader, FileWriter};
use pandastack_guest_proto::message::{self as guest, FileKind, FileRead, FileWrite, RawPath, WriteMode};
use pandastack_types::api::{self, DirectoryListing, FileEntry, FileWritten};
use pandastack_types::limits;

use crate::byte_range::{self, ByteRange};
use crate::error::{AgentError, Result};
use crate::json_list::List;
use crate::sandbox::handle::GuestLease;

/// Longest path, as in the guest's kernel.
const PATH_BYTES_MAX: usize = 4095;

/// Checks a path of a request: absolute, no NUL, not too long. The guest resolves the path.
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

/// A file's content as a response body.
pub(crate) struct Content {
    pub body: Body,
    /// Size of the whole file; zero for devices and files that the kernel generates.
    pub size: u64,
    /// Bytes that the body has, where they can be promised.
    pub length: Option<u64>,
    /// First byte, if this is a part.
    pub start: Option<u64>,
}

/// Opens a file, or the part of it that a `Range` header requests.
pub(crate) async fn read(lease: GuestLease, path: &str, range: Option<&str>) -> Result<Content> {
    check_path(path)?;
    let mut read = FileRead { path: path.into(), ..FileRead::default() };
    let mut start = None;
    if let Some(range) = range {
        let found = lease.guest.stat(path, false).await?;
        if found.kind == FileKind::File {
            match byte_range::parse(range, found.size) {
                ByteRange::Whole => {}
                ByteRange::Part { start: first, length } => {
                    (read.offset, read.length) = (first, Some(length));
                    start = Some(first);
                }
                ByteRange::Unsatisfiable => {
                    return Err(AgentError::BadRange { range: shown(range), size: found.size });
                }
            }
        }
    }
    let reader = lease.guest.read_file(read.clone()).await?;
    // A device or pipe has no known length, and files that the kernel generates report zero.
    let size = if reader.file().kind == FileKind::File { reader.file().size } else { 0 };
    let length = read.length.or((size > 0).then_some(size));
    let body = body(Reading { reader, lease, left: length });
    Ok(Content { body, size, length, start })
}

struct Reading {
    reader: FileReader,
    /// Held, not read: the sandbox is in use.
    #[expect(dead_code, reason = "held for its drop")]
    lease: GuestLease,
    /// Promised bytes that are not sent yet.
    left: Option<u64>,
}

impl Reading {
    /// The next bytes. A file that grew is cut at the announced size; one that shrank is an error.
    async fn next(&mut self) -> Option<Result<Bytes>> {
        if self.left == Some(0) {
            return None;
        }
        match (self.reader.next().await, &mut self.left) {
            (Ok(Some(mut bytes)), Some(left)) => {
                bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= bytes.len() as u64;
                Some(Ok(bytes))
            }
            (Ok(Some(bytes)), None) => Some(Ok(bytes)),
            (Ok(None), Some(_)) => {
                let shrank = "the file shrank while it was read; read it again".to_owned();
                Some(Err(AgentError::Conflict(shrank)))
            }
            (Ok(None), None) => None,
            (Err(error), _) => Some(Err(error.into())),
        }
    }
}

fn body(reading: Reading) -> Body {
    let stream = futures::stream::unfold(Some(reading), |reading: Option<Reading>| async move {
        let mut reading = reading?;
        match reading.next().await? {
            Ok(bytes) => Some((Ok(bytes), Some(reading))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Body::from_stream(stream)
}

/// Options for writing a file.
#[derive(Debug, Default)]
pub(crate) struct Write {
    pub mode: WriteMode,
    /// Permission bits.
    pub permissions: Option<u32>,
    /// Owner of a new file.
    pub user: Option<String>,
}

impl Write {
    /// Parses the query of a request.
    pub(crate) fn parse(write: Option<&str>, mode: Option<&str>, user: Option<String>) -> Result<Self> {
        let write_mode = match write {
            None | Some("atomic") => WriteMode::Atomic,
            Some("in_place") => WriteMode::Truncate,
            Some("append") => WriteMode::Append,
            Some(other) => {
                let other = shown(other);
                let message = format!("`write` must be atomic, in_place or append, not `{other}`");
                return Err(AgentError::BadRequest(message));
            }
        };
        Ok(Self { mode: write_mode, permissions: mode.map(parse_mode).transpose()?, user })
    }
}

/// Permission bits in octal.
pub(crate) fn parse_mode(text: &str) -> Result<u32> {
    let digits = text.trim_start_matches("0o");
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        let message = format!("`mode` must be octal permissions such as 0644, not `{}`", shown(text));
        AgentError::BadRequest(message)
    })
}

fn too_large() -> AgentError {
    AgentError::TooLarge(format!(
        "the body is larger than {} bytes; upload it in parts",
        limits::FILE_BODY_BYTES_MAX
    ))
}

/// Writes a request body to a file, with parents made.
pub(crate) async fn write(lease: &GuestLease, path: &str, write: Write, body: Body) -> Result<FileWritten> {
    check_path(path)?;
    let Write { mode: write_mode, permissions: mode, user } = write;
    let write = FileWrite { path: path.into(), write_mode, mode, make_parents: true, user };
    pour(body, lease.guest.write_file(write).await?, path).await
}

/// Streams a request body into the guest, within the limit of all uploads.
pub(crate) async fn pour(body: Body, mut writer: FileWriter, path: &str) -> Result<FileWritten> {
    let mut stream: BodyDataStream = body.into_data_stream();
    let mut total = 0u64;
    while let Some(chunk) = stream.next().await {
        // Dropping the writer without an end makes the guest discard the partial file.
        let chunk =
            chunk.map_err(|error| AgentError::BadRequest(format!("the upload was interrupted: {error}")))?;
        total += chunk.len() as u64;
        if total > limits::FILE_BODY_BYTES_MAX {
            return Err(too_large());
        }
        writer.write(&chunk).await?;
    }
    let written = writer.finish().await?;
    Ok(FileWritten { path: path.to_owned(), bytes: written.bytes })
}

/// The entries of a directory, as a [`DirectoryListing`].
pub(crate) async fn list(lease: &GuestLease, path: &str) -> Result<Response> {
    check_path(path)?;
    let mut list = List::new(lease.budget.begin()?);
    let truncated = lease.guest.list_pages(path, |page, bytes| keep(&mut list, path, page, bytes)).await?;
    list.items.sort_by(|a: &FileEntry, b| a.name.cmp(&b.name));
    answer(list, path, truncated)
}

/// Keeps a page of entries below a path, if there is room for it.
pub(crate) fn keep(
    list: &mut List<FileEntry>,
    path: &str,
    page: Vec<guest::FileEntry>,
    json_bytes: usize,
) -> bool {
    let has_room = list.has_room(page.len(), json_bytes, path.len());
    if has_room {
        list.items.extend(page.into_iter().map(|found| {
            let relative = found.path.as_ref().unwrap_or(&found.name).to_string_lossy().into_owned();
            entry(&join(path, &relative), found)
        }));
    }
    has_room
}

/// A [`DirectoryListing`] of these entries.
pub(crate) fn answer(list: List<FileEntry>, path: &str, truncated: bool) -> Result<Response> {
    let frame = DirectoryListing { path: path.to_owned(), entries: Vec::new(), truncated };
    Ok(list.into_response(&frame, "entries")?)
}

pub(crate) async fn stat(lease: &GuestLease, path: &str) -> Result<FileEntry> {
    check_path(path)?;
    let found = lease.guest.stat(RawPath::from(path), false).await?;
    let mut entry = entry(path, found);
    entry.name = path.trim_end_matches('/').rsplit('/').next().unwrap_or("/").to_owned();
    if entry.name.is_empty() {
        entry.name = "/".to_owned();
    }
    Ok(entry)
}

pub(crate) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

pub(crate) fn entry(path: &str, found: guest::FileEntry) -> FileEntry {
    FileEntry {
        name: found.name.to_string_lossy().into_owned(),
        path: path.to_owned(),
        is_dir: found.kind == FileKind::Directory,
        kind: match found.kind {
            FileKind::File => api::FileKind::File,
            FileKind::Directory => api::FileKind::Directory,
            FileKind::Symlink => api::FileKind::Symlink,
            FileKind::Other => api::FileKind::Other,
        },
        size: found.size,
        mode: mode_text(found.kind, found.mode),
        permissions: found.mode,
        uid: found.uid,
        gid: found.gid,
        owner: found.owner,
        group: found.group,
        mtime: found.mtime_s,
        link_target: found.target.map(|target| target.to_string_lossy().into_owned()),
        xattrs: found.xattrs,
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
    fn relative_and_oversized_paths_are_rejected() {
        for (path, ok) in [("/a", true), ("a", false), ("", false), ("/a\0", false), ("/ü b/../c", true)] {
            assert_eq!(check_path(path).is_ok(), ok, "{path:?}");
        }
        assert!(check_path(&format!("/{}", "a".repeat(5000))).is_err());
    }

    #[test]
    fn file_modes_are_formatted_like_ls() {
        assert_eq!(mode_text(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o750), "drwxr-x---");
    }

    #[test]
    fn permissions_are_parsed_as_octal() {
        assert_eq!(parse_mode("0644").unwrap(), 0o644);
        assert_eq!(parse_mode("0o4755").unwrap(), 0o4755);
        for bad in ["", "rw", "888", "10000", "-1"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn joined_paths_have_one_slash() {
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a/", "b"), "/a/b");
    }
}
