//! Converts kernel errors to protocol errors.

use std::io::{self, ErrorKind};
use std::path::Path;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode};

/// "cannot <do what> <path>: <why>".
pub(crate) fn refusal(what: &str, path: &Path, error: &io::Error) -> ErrorBody {
    let code = match error.kind() {
        ErrorKind::NotFound => ErrorCode::NotFound,
        ErrorKind::IsADirectory => ErrorCode::IsDirectory,
        ErrorKind::NotADirectory => ErrorCode::NotADirectory,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ErrorCode::PermissionDenied,
        ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
        ErrorKind::DirectoryNotEmpty => ErrorCode::NotEmpty,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => ErrorCode::NoSpace,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename | ErrorKind::ArgumentListTooLong => {
            ErrorCode::Invalid
        }
        // Loops of links have no stable kind.
        _ if error.raw_os_error() == Some(libc::ELOOP) => ErrorCode::Invalid,
        _ => ErrorCode::Io,
    };
    let why = error
        .raw_os_error()
        .map_or_else(|| error.to_string(), |raw| nix::errno::Errno::from_raw(raw).desc().to_owned());
    ErrorBody::new(code, format!("cannot {what} {}: {why}", path.display()))
}
