//! Packs a tree as a tar archive while it is sent.
//!
//! Names longer than a header's field use GNU's extension, extended attributes use pax. Devices, pipes and
//! sockets are left out. A file that shrinks while it is read is filled with zeros, one that grows is cut:
//! the archive stays readable.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, RawPath};
use tar::{EntryType, Header};

use super::absolute::absolute;
use super::errors::refusal;
use super::source::{Source, Step};
use super::walk::{STEP_ENTRIES, Walker};
use super::xattrs;

/// Everything in an archive is a multiple of this.
pub(super) const BLOCK_BYTES: usize = 512;
/// Bytes of a name that fit in a header.
const NAME_BYTES: usize = 100;

/// A tree being packed.
#[derive(Debug)]
pub(crate) struct PackSource {
    path: RawPath,
    stage: Stage,
    /// Headers and padding that wait to be sent.
    pending: Vec<u8>,
    body: Option<Body>,
}

/// The content of the entry whose header was sent last.
#[derive(Debug)]
struct Body {
    file: File,
    left: u64,
    /// Zeros after it, up to a full block.
    padding: usize,
}

#[derive(Debug)]
enum Stage {
    Begin,
    Tree(Walker),
    /// One file, under the requested name; a link is followed.
    File {
        path: PathBuf,
        name: OsString,
    },
    Trailer,
    End,
}

impl PackSource {
    pub(crate) fn new(path: RawPath) -> Self {
        Self { path, stage: Stage::Begin, pending: Vec::new(), body: None }
    }

    fn begin(&self) -> Result<Stage, ErrorBody> {
        let path = absolute(&self.path)?;
        let fail = |error: &io::Error| refusal("read", &path, error);
        let meta = std::fs::metadata(&path).map_err(|error| fail(&error))?;
        if meta.is_dir() {
            return Ok(Stage::Tree(Walker::open(&path, None).map_err(|error| fail(&error))?));
        }
        if !meta.is_file() {
            return Err(fail(&ErrorKind::InvalidInput.into()));
        }
        let name = path.file_name().unwrap_or_default().to_owned();
        let path = std::fs::canonicalize(&path).map_err(|error| fail(&error))?;
        Ok(Stage::File { path, name })
    }

    /// Queues the next entry; false if no entry is left.
    fn next_entry(&mut self) -> Result<bool, ErrorBody> {
        match &mut self.stage {
            Stage::Begin => self.stage = self.begin()?,
            Stage::Tree(walker) => match walker.next() {
                Some(visited) => self.add(&visited.path, &visited.relative, &visited.meta),
                None => self.stage = Stage::Trailer,
            },
            Stage::File { path, name } => {
                let (path, name) = (std::mem::take(path), std::mem::take(name));
                let meta = std::fs::metadata(&path).map_err(|error| refusal("read", &path, &error))?;
                self.add(&path, Path::new(&name), &meta);
                self.stage = Stage::Trailer;
            }
            Stage::Trailer => {
                self.pending.resize(self.pending.len() + 2 * BLOCK_BYTES, 0);
                self.stage = Stage::End;
            }
            Stage::End => return Ok(false),
        }
        Ok(true)
    }

    /// Adds an entry. One that has vanished since it was seen, or cannot be read, is left out.
    fn add(&mut self, path: &Path, name: &Path, meta: &Metadata) {
        let mut header = Header::new_gnu();
        header.set_mode(meta.mode() & 0o7777);
        header.set_uid(meta.uid().into());
        header.set_gid(meta.gid().into());
        header.set_mtime(u64::try_from(meta.mtime()).unwrap_or_default());
        header.set_size(0);
        let mut name = name.as_os_str().as_bytes().to_vec();
        if meta.is_dir() {
            header.set_entry_type(EntryType::Directory);
            name.push(b'/');
        } else if meta.is_symlink() {
            let Ok(target) = std::fs::read_link(path) else { return };
            header.set_entry_type(EntryType::Symlink);
            let target = target.as_os_str().as_bytes();
            self.add_long(EntryType::GNULongLink, target);
            put(&mut header.as_old_mut().linkname, target);
        } else if meta.is_file() {
            let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
            let Ok(file) = open else { return };
            let Ok(size) = file.metadata().map(|meta| meta.len()) else { return };
            header.set_entry_type(EntryType::Regular);
            header.set_size(size);
            let padding = (BLOCK_BYTES - (size % BLOCK_BYTES as u64) as usize) % BLOCK_BYTES;
            self.body = Some(Body { file, left: size, padding });
        } else {
            return;
        }
        if !meta.is_symlink() {
            self.add_attributes(&xattrs::records(path));
        }
        self.add_long(EntryType::GNULongName, &name);
        put(&mut header.as_old_mut().name, &name);
        header.set_cksum();
        self.pending.extend_from_slice(header.as_bytes());
    }

    fn add_long(&mut self, kind: EntryType, text: &[u8]) {
        if text.len() > NAME_BYTES {
            self.add_extension(kind, b"././@LongLink", &[text, b"\0"].concat());
        }
    }

    fn add_attributes(&mut self, records: &[u8]) {
        if !records.is_empty() {
            self.add_extension(EntryType::XHeader, b"././@PaxHeader", records);
        }
    }

    /// Adds an entry that says more about the next one.
    fn add_extension(&mut self, kind: EntryType, name: &[u8], content: &[u8]) {
        let mut header = Header::new_gnu();
        put(&mut header.as_old_mut().name, name);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.pending.extend_from_slice(header.as_bytes());
        self.pending.extend_from_slice(content);
        let padding = content.len().next_multiple_of(BLOCK_BYTES) - content.len();
        self.pending.resize(self.pending.len() + padding, 0);
    }

    /// Moves some of the present file's bytes out; the padding follows the last of them.
    fn read_body(&mut self, room: usize, out: &mut Vec<u8>) {
        let Some(Body { file, left, padding }) = &mut self.body else { return };
        let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(room);
        let start = out.len();
        let count = file.take(wanted as u64).read_to_end(out).unwrap_or_default();
        if count < wanted {
            out.resize(start + wanted, 0);
        }
        *left -= wanted as u64;
        if *left == 0 {
            self.pending.resize(*padding, 0);
            self.body = None;
        }
    }
}

fn put(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

impl Source for PackSource {
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody> {
        let mut out = Vec::with_capacity(bytes_max);
        for _ in 0..STEP_ENTRIES {
            let room = bytes_max - out.len();
            if room == 0 {
                break;
            }
            if !self.pending.is_empty() {
                out.extend(self.pending.drain(..room.min(self.pending.len())));
            } else if self.body.is_some() {
                self.read_body(room, &mut out);
            } else if !self.next_entry()? {
                break;
            }
        }
        Ok(match (out.is_empty(), &self.stage) {
            (false, _) => Step::Data(out),
            (true, Stage::End) if self.pending.is_empty() => Step::End,
            (true, _) => Step::Idle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_file_is_packed_as_that_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("program-1.2"), "content").unwrap();
        let link = directory.path().join("program");
        std::os::unix::fs::symlink("program-1.2", &link).unwrap();
        let mut source = PackSource::new(RawPath::from(link.to_str().unwrap()));
        let mut packed = Vec::new();
        while let Step::Data(bytes) = source.next(1 << 16).unwrap() {
            packed.extend(bytes);
        }
        let mut archive = tar::Archive::new(packed.as_slice());
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().expect("the file").unwrap();
        assert_eq!(entry.path().unwrap(), Path::new("program"));
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert!(entries.next().is_none());
    }
}
