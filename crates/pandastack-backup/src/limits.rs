//! Limits of backups, each with what happens beyond it.

use std::time::Duration;

/// Bytes of a WAL segment. A server with another size is refused: names of segments would mean other positions.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Longest time that WAL may wait before it is archived. With the time that takes, this is the loss
/// window.
pub const PIECE_WAIT: Duration = Duration::from_secs(2);
/// Pieces of one level that are merged into one of the next.
pub const MERGE_PIECES: usize = 16;
/// Bytes of a base backup's tar in one object, before compression. Held in memory while a base is taken or restored.
pub const BASE_PART_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of the server's list of files in a base, some 150 for each file. Beyond it the backup fails.
pub const SERVER_MANIFEST_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes of a base's description in the archive, and of a timeline's history. Beyond it the object is refused.
pub const DESCRIPTION_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one message of the server: it sends WAL in 128 KiB and files in 32 KiB. Beyond it the
/// connection is closed.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Rows of an answer to a command. Beyond it the connection is closed.
pub const ROWS_MAX: usize = 10_000;
/// Interval at which the archiver confirms its position to the server, and checks that the server
/// is alive.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// Silence of the server after which the connection is closed.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest time for the answer to a command. A base backup waits for a checkpoint before its first
/// byte, and may take longer.
pub const COMMAND_WAIT: Duration = Duration::from_secs(60);
/// Longest time for one operation on an object of the store, including the retries of the store's
/// client. Beyond it the operation has failed.
pub const STORE_WAIT: Duration = Duration::from_secs(60);
/// Longest time for a stop to archive what the server had sent.
pub const STOP_WAIT: Duration = Duration::from_secs(10);
/// First pause after a failure. It doubles up to [`RETRY_WAIT_MAX`].
pub const RETRY_WAIT: Duration = Duration::from_millis(250);
/// Longest pause after a failure.
pub const RETRY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Archived bytes that a server must send again, to prove that it is still the server whose WAL this is.
pub const PROOF_BYTES: usize = 8 * 1024;
/// Age at which a base without a description counts as abandoned.
pub const UNFINISHED_AGE: Duration = Duration::from_secs(24 * 60 * 60);
