//! How much a tool gives back: a model reads all of it.

/// Bytes kept of each output stream of a command. Beyond it the middle is left out, and said so.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// Bytes of a file that one read gives. Beyond it the rest is left out, and said so; read on by `offset`.
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// Entries of a directory that one listing gives. Beyond it the rest is left out, and said so.
pub const ENTRIES_MAX: usize = 500;
/// Sandboxes that one listing gives, the newest.
pub const SANDBOXES_MAX: usize = 100;
/// Bytes of one HTTP request: room for a file of a few megabytes.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
