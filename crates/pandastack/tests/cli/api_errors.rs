//! An error of each code, as a server sends it.

use pandastack_types::ErrorCode;

/// Key whose calls fail with `code`.
pub fn key(code: ErrorCode) -> String {
    format!("pds_{}", code.as_str())
}

/// The code that calls with this key fail with.
pub fn code_of(key: &str) -> Option<ErrorCode> {
    let code = key.strip_prefix("pds_")?;
    ErrorCode::ALL.iter().copied().find(|one| one.as_str() == code)
}

/// A message of the code, from `docs/reference/errors.md`.
pub fn message(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::BadRequest => "`ttl_seconds` must be a positive integer",
        ErrorCode::Unauthorized => {
            "the API key is invalid; it may have been deleted or have expired; find a key in \
             ~/.config/pandastack/config.json, or create one with `pandastack token create`"
        }
        ErrorCode::Forbidden => {
            "this request needs role `developer`, but key `pds_view...` has `viewer`; create a key with \
             `pandastack token create --role developer`, using an owner key"
        }
        ErrorCode::WorkspaceSuspended => {
            "workspace `team` is suspended; nothing in it is lost; ask the operator of this installation"
        }
        ErrorCode::NotFound => "template `tools` not found",
        ErrorCode::FileNotFound => "cannot open /srv/data: No such file or directory",
        ErrorCode::MethodNotAllowed => "`/v1/sandboxes` does not support PUT",
        ErrorCode::RequestTimeout => "the request body did not arrive within 30 s; send it again",
        ErrorCode::Conflict => "a volume `data` already exists; choose another name",
        ErrorCode::SnapshotUnusable => "the snapshot is damaged: its memory does not have its checksum",
        ErrorCode::IdempotencyConflict => {
            "this Idempotency-Key was used for a different request; use a new key for each request"
        }
        ErrorCode::SandboxFailed => {
            "sandbox `3f2b0c1e` failed: its process was killed; delete it and create another"
        }
        ErrorCode::BodyTooLarge => "the request body is larger than 1048576 bytes",
        ErrorCode::RangeNotSatisfiable => "range `bytes=9-` is outside the file, which has 4 bytes",
        ErrorCode::QuotaExceeded => {
            "quota `sandboxes` exceeded: the limit is 5, 5 are in use and this needs 1 more; delete \
             something, or raise it with `pandastack quota set`"
        }
        ErrorCode::RateLimited => {
            "rate limit exceeded: the workspace may send 50 requests per second (`requests_per_second`); \
             slow down"
        }
        ErrorCode::NotImplemented => {
            "backups are disabled on this server; ask its operator to set --backups to a URL"
        }
        ErrorCode::Internal => "internal server error; search the server's log for this request id",
        ErrorCode::GuestUnavailable => "copying the data timed out; try again",
        ErrorCode::PortClosed => "nothing listens on port 8080 of the sandbox",
        ErrorCode::NoCapacity => "64 commands are running on this socket; wait for one to end",
        ErrorCode::DiskFull => "the disk that holds the database is full; free some space and try again",
        ErrorCode::TemplateBaking => {
            "template `tools` is being built (installing packages); try again shortly"
        }
        ErrorCode::TemplateFailed => "template `tools` could not be built: apt-get exited with 100",
        ErrorCode::HostUnreachable => "the sandbox's host failed; search the log of its agent",
        ErrorCode::Unavailable => "no host is connected; start an agent",
        ErrorCode::ExecTimeout => "the command was killed by its timeout of 5 s",
    }
}
