//! Limits on how much of a source is read.

/// Levels of directories that are worth listing.
pub const DEPTH_MAX: usize = 3;
/// Names listed at most; an app's entry is never that far down.
pub const FILES_MAX: usize = 4_000;
/// Bytes read of one file.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Files read at most.
pub const TEXTS_MAX: usize = 64;
