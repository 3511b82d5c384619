//! An append-only log file with rotation: `access.log`, then `access.log.1`, and so on.
//!
//! Must hold: lines are not lost when a file cannot be rotated; a file that is not regular, such as
//! a pipe, is only written to.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Maximum disk space of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Largest size of one file.
    pub(crate) bytes_max: u64,
    /// Number of rotated files.
    pub(crate) old_files_max: u32,
}

/// The file that is written to now.
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    /// Length of the file; `None` when it is not a regular file.
    bytes: Option<u64>,
    bounds: Bounds,
}

impl LogFile {
    pub(crate) fn open(path: &Path, bounds: Bounds) -> io::Result<Self> {
        let (file, bytes) = open(path)?;
        Ok(Self { path: path.to_owned(), file, bytes, bounds })
    }

    /// Appends whole lines.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let added = lines.len() as u64;
        if self.bytes.is_some_and(|bytes| bytes > 0 && bytes + added > self.bounds.bytes_max) {
            // Tried again with the next lines; these go where they would have gone before.
            if let Err(error) = self.rotate() {
                tracing::warn!(%error, path = %self.path.display(), "cannot rotate a log file");
            }
        }
        self.file.write_all(lines)?;
        self.bytes = self.bytes.map(|bytes| bytes + added);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut to = self.bounds.old_files_max;
        while to > 0 {
            let from = if to == 1 { self.path.clone() } else { numbered(&self.path, to - 1) };
            match fs::rename(from, numbered(&self.path, to)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => to -= 1,
            }
        }
        (self.file, self.bytes) = open(&self.path)?;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, Option<u64>)> {
    let file = File::options().create(true).append(true).open(path)?;
    let about = file.metadata()?;
    Ok((file, about.is_file().then_some(about.len())))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bytes_max: 10, old_files_max: 2 };

    #[test]
    fn a_full_log_is_rotated_and_the_oldest_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let check = |expect: [&str; 4]| {
            let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
            let found = [path.clone(), numbered(&path, 1), numbered(&path, 2), numbered(&path, 3)].map(read);
            assert_eq!(found, expect);
        };
        let mut log = LogFile::open(&path, BOUNDS).unwrap();
        for line in ["one\n", "two\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        check(["one\ntwo\n", "", "", ""]);
        // Existing content counts.
        let mut log = LogFile::open(&path, BOUNDS).unwrap();
        log.append(b"three\n").unwrap();
        check(["three\n", "one\ntwo\n", "", ""]);
        log.append(b"much longer than a file may be\n").unwrap();
        log.append(b"four\n").unwrap();
        check(["four\n", "much longer than a file may be\n", "three\n", ""]);
    }

    #[test]
    fn lines_are_kept_when_log_rotation_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        fs::create_dir_all(numbered(&path, 1).join("in the way")).unwrap();
        let mut log = LogFile::open(&path, Bounds { bytes_max: 10, old_files_max: 1 }).unwrap();
        for line in ["one and\n", "two and\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one and\ntwo and\n");
    }

    #[test]
    fn special_files_are_written_without_rotation() {
        let mut log = LogFile::open(Path::new("/dev/null"), BOUNDS).unwrap();
        for _ in 0..3 {
            log.append(b"much longer than a file may be\n").unwrap();
        }
        assert!(!Path::new("/dev/null.1").exists());
    }
}
