//! Paths of requests.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, RawPath};

/// The absolute path of a request. Relative paths start at the root directory.
pub(crate) fn absolute(path: &RawPath) -> Result<PathBuf, ErrorBody> {
    let bytes = path.as_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(ErrorBody::new(ErrorCode::Invalid, "a path must not be empty or contain a zero byte"));
    }
    Ok(Path::new("/").join(OsStr::from_bytes(bytes)))
}
