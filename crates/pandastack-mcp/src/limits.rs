//! Size limits of results, because a model reads all of them.

/// Bytes of each output stream of a command. Longer output is truncated in the middle.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// Seconds of a run of code whose call names none.
pub const CODE_TIMEOUT_SECONDS_DEFAULT: u64 = 60;
/// Bytes of a file per read. The rest is read with `offset`.
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// Entries of a directory listing. The number of omitted entries is reported.
pub const ENTRIES_MAX: usize = 500;
/// Sandboxes of a listing, newest first.
pub const SANDBOXES_MAX: usize = 100;
/// Bytes of an HTTP request; enough for a file of a few megabytes.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
