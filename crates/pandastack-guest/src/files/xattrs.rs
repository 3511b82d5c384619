//! Extended attributes of files, as an archive has them: what lets programs such as `ping` work without root,
//! and what programs note for themselves.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names of attributes that are packed begin so. The others belong to file systems and security modules.
const PACKED: [&[u8]; 2] = [b"security.capability", b"user."];
/// Longest list of names, and longest value, that Linux allows.
const BYTES_MAX: usize = 64 * 1024;
/// Attributes beyond this are left out: longer headers are refused by readers.
const RECORDS_BYTES_MAX: usize = 60 * 1024;

/// The pax records of a file's attributes; empty if it has none. Links are not followed.
pub(super) fn records(path: &Path) -> Vec<u8> {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return Vec::new() };
    let mut records = Vec::new();
    for name in names(&path).split(|byte| *byte == 0) {
        if !PACKED.iter().any(|packed| name.starts_with(packed)) {
            continue;
        }
        let Ok(text) = CString::new(name) else { continue };
        let Some(value) = value(&path, &text) else { continue };
        let record = record(name, &value);
        if records.len() + record.len() <= RECORDS_BYTES_MAX {
            records.extend(record);
        }
    }
    records
}

/// Names of attributes, each with a zero after it.
fn names(path: &CStr) -> Vec<u8> {
    // Most files have none, and are asked without a buffer.
    // SAFETY: the path is a string with a zero at its end, and without a buffer nothing is written.
    let size = unsafe { libc::llistxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    if size <= 0 {
        return Vec::new();
    }
    let mut buffer = vec![0; BYTES_MAX];
    // SAFETY: as above; at most the length of the buffer is written.
    let size = unsafe { libc::llistxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(usize::try_from(size).unwrap_or_default());
    buffer
}

fn value(path: &CStr, name: &CStr) -> Option<Vec<u8>> {
    let mut buffer = vec![0_u8; BYTES_MAX];
    let (out, length) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: path and name are strings with a zero at their ends, and at most `length` bytes are written.
    let size = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), out.cast(), length) };
    buffer.truncate(usize::try_from(size).ok()?);
    Some(buffer)
}

/// A record: its length, which counts itself, its key and its value.
fn record(name: &[u8], value: &[u8]) -> Vec<u8> {
    let text = [b" SCHILY.xattr.", name, b"=", value, b"\n"].concat();
    let mut length = text.len();
    while length != text.len() + length.to_string().len() {
        length = text.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), text.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        assert_eq!(record(b"user.a", b"1"), b"25 SCHILY.xattr.user.a=1\n");
        for bytes in 0..200 {
            let record = record(b"user.a", &vec![b'x'; bytes]);
            let text = String::from_utf8(record).unwrap();
            let (length, _) = text.split_once(' ').unwrap();
            assert_eq!(length.parse::<usize>().unwrap(), text.len());
        }
    }

    #[test]
    fn attributes_of_users_are_packed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().as_os_str().as_bytes()).unwrap();
        assert_eq!(records(file.path()), b"");
        assert_eq!(records(Path::new("/nowhere")), b"");
        let (name, value) = (c"user.kind", b"x\0y");
        // SAFETY: path and name are strings with a zero at their ends, and the value has that length.
        let set =
            unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
        if set != 0 {
            println!("skipped: the file system of {} has no attributes", file.path().display());
            return;
        }
        assert_eq!(records(file.path()), record(b"user.kind", b"x\0y"));
    }
}
