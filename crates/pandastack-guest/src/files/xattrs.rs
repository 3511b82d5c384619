//! Extended attributes of files: what lets programs such as `ping` work without root, and what programs note
//! for themselves. Archives have both; callers read and change the notes that are text.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pandastack_guest_proto::limits::{XATTR_NAME_BYTES_MAX, XATTRS_BYTES_MAX};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode};

use super::errors::refusal;

/// The beginning of the names of notes.
const NOTES: &str = "user.";
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
    for name in names(&path, libc::llistxattr).split(|byte| *byte == 0) {
        if !PACKED.iter().any(|packed| name.starts_with(packed)) {
            continue;
        }
        let Ok(text) = CString::new(name) else { continue };
        let Some(value) = value(&path, &text, libc::lgetxattr) else { continue };
        let record = record(name, &value);
        if records.len() + record.len() <= RECORDS_BYTES_MAX {
            records.extend(record);
        }
    }
    records
}

/// Notes of a file whose values are text. Links are followed. What exceeds the limit is left out.
pub(super) fn texts(path: &Path) -> BTreeMap<String, String> {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return BTreeMap::new() };
    let mut texts = BTreeMap::new();
    let mut bytes = 0;
    for name in names(&path, libc::listxattr).split(|byte| *byte == 0) {
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| name.starts_with(NOTES)) else {
            continue;
        };
        let Ok(raw_name) = CString::new(name) else { continue };
        let value = value(&path, &raw_name, libc::getxattr).and_then(|value| String::from_utf8(value).ok());
        let Some(value) = value.filter(|value| is_text(name) && is_text(value)) else { continue };
        bytes += name.len() + value.len();
        if bytes > XATTRS_BYTES_MAX {
            break;
        }
        texts.insert(name.to_owned(), value);
    }
    texts
}

/// Whether a name or value can be shown as it is.
fn is_text(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Checked changes of notes.
pub(super) struct Changes<'a>(Vec<(CString, Option<&'a str>)>);

impl<'a> Changes<'a> {
    pub(super) fn check(wanted: &'a BTreeMap<String, Option<String>>) -> Result<Self, ErrorBody> {
        let invalid = |what: String| ErrorBody::new(ErrorCode::Invalid, what);
        let bytes =
            |(name, value): (&String, &Option<String>)| name.len() + value.as_ref().map_or(0, String::len);
        if wanted.iter().map(bytes).sum::<usize>() > XATTRS_BYTES_MAX {
            return Err(invalid(format!("the extended attributes have over {XATTRS_BYTES_MAX} bytes")));
        }
        let checked = wanted.iter().map(|(name, value)| {
            let is_note =
                name.len() > NOTES.len() && name.starts_with(NOTES) && name.len() <= XATTR_NAME_BYTES_MAX;
            let value = value.as_deref();
            if !is_note || !is_text(name) || !value.is_none_or(is_text) {
                return Err(invalid(format!(
                    "the name of an extended attribute must begin with `{NOTES}` and have at most \
                     {XATTR_NAME_BYTES_MAX} bytes; names and values must not contain control characters"
                )));
            }
            let name = CString::new(name.as_str()).map_err(|error| invalid(error.to_string()))?;
            Ok((name, value))
        });
        checked.collect::<Result<_, _>>().map(Self)
    }

    /// Sets and removes the notes of a file. Links are followed.
    pub(super) fn apply(&self, path: &Path) -> Result<(), ErrorBody> {
        let shown = path;
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return Ok(()) };
        for (name, value) in &self.0 {
            // SAFETY: path and name are strings with a zero at their ends, and the value has that length.
            let done = unsafe {
                match value {
                    Some(value) => {
                        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
                    }
                    None => libc::removexattr(path.as_ptr(), name.as_ptr()),
                }
            };
            let error = io::Error::last_os_error();
            let is_absent = value.is_none() && error.raw_os_error() == Some(libc::ENODATA);
            if done != 0 && !is_absent {
                return Err(refusal("set an extended attribute of", shown, &error));
            }
        }
        Ok(())
    }
}

/// `listxattr`, which follows links, or `llistxattr`.
type List = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
/// `getxattr`, which follows links, or `lgetxattr`.
type Get = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void, usize) -> isize;

/// Names of attributes, each with a zero after it.
fn names(path: &CStr, list: List) -> Vec<u8> {
    // Most files have none, and are asked without a buffer.
    // SAFETY: the path is a string with a zero at its end, and without a buffer nothing is written.
    let size = unsafe { list(path.as_ptr(), std::ptr::null_mut(), 0) };
    if size <= 0 {
        return Vec::new();
    }
    let mut buffer = vec![0; BYTES_MAX];
    // SAFETY: as above; at most the length of the buffer is written.
    let size = unsafe { list(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(usize::try_from(size).unwrap_or_default());
    buffer
}

fn value(path: &CStr, name: &CStr, get: Get) -> Option<Vec<u8>> {
    let mut buffer = vec![0_u8; BYTES_MAX];
    let (out, length) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: path and name are strings with a zero at their ends, and at most `length` bytes are written.
    let size = unsafe { get(path.as_ptr(), name.as_ptr(), out.cast(), length) };
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

    fn changes(pairs: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect()
    }

    #[test]
    fn notes_are_set_read_through_links_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let set = changes(&[("user.a", Some("1")), ("user.b", Some("ü")), ("user.c", None)]);
        if let Err(error) = Changes::check(&set).unwrap().apply(&link) {
            println!("skipped: {} has no extended attributes: {}", dir.path().display(), error.message);
            return;
        }
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(texts(&link), text(&[("user.a", "1"), ("user.b", "ü")]));
        Changes::check(&changes(&[("user.a", None)])).unwrap().apply(&file).unwrap();
        assert_eq!(texts(&file), text(&[("user.b", "ü")]));
        assert!(Changes::check(&set).unwrap().apply(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn only_bounded_notes_can_be_changed() {
        let (long, large) = ("x".repeat(XATTR_NAME_BYTES_MAX), "x".repeat(XATTRS_BYTES_MAX));
        let long = format!("user.{long}");
        for (name, value) in [
            ("security.capability", "x"),
            ("user.", "x"),
            ("user.a\nb", "x"),
            ("user.a", "x\n"),
            (long.as_str(), "x"),
            ("user.a", large.as_str()),
        ] {
            assert!(Changes::check(&changes(&[(name, Some(value))])).is_err(), "{name}");
        }
        assert!(Changes::check(&changes(&[("user.a", Some(""))])).is_ok());
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
