//! Every promised number of the edge in one place. What happens at a limit is said beside it.

use std::time::Duration;

/// Requests that may wait for one sandbox to wake. Beyond it: 503 with `Retry-After`.
pub const HELD_REQUESTS_MAX: usize = 1_000;
/// How long a request waits for its sandbox to wake. Beyond it: 503 with `Retry-After`.
pub const HELD_WAIT: Duration = Duration::from_secs(30);
/// Requests, streams and tunnels under way to one sandbox. Beyond it: 503 with `Retry-After`.
pub const REQUESTS_PER_SANDBOX_MAX: usize = 16_384;
/// Requests under way to one machine of an app before the next one is used; when all have as many, the least busy gets more.
pub const REQUESTS_PER_INSTANCE: usize = 10;
/// How long a machine of an app that a request did not reach is passed over while there are others.
pub const AVOIDED_FOR: Duration = Duration::from_secs(5);
/// Connections of one client address. Beyond it: closed at once.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 12_288;
/// Connections of one listen address. Beyond it: closed at once.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Bytes of a request's head, and of each direction's buffer. Beyond it: 431.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header lines of a request. Beyond it: 431. What the HTTP library has room for on the stack; for any other number it
/// allocates and fills 8 KiB with every head.
pub const HEADER_LINES_MAX: usize = 100;
/// How long a head may take to arrive, and a kept connection may stay silent. Beyond it: closed.
pub const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Requests that one HTTP/2 connection may have under way. Beyond it: the client waits.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of one request body. Beyond it: 413. Bodies stream; memory does not grow with it.
pub const BODY_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Idle connections kept to one port of one sandbox. Beyond it: the oldest is closed.
pub const IDLE_UPSTREAMS_MAX: usize = 128;
/// How long a guest may take to accept a connection. Beyond it: 504.
pub const DIAL_WAIT: Duration = Duration::from_secs(10);
/// How long requests under way may take when the edge stops. Beyond it: cut.
pub const STOP_WAIT: Duration = Duration::from_secs(5);
/// A door without a byte for this long is reported as idle to its agent.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Sandboxes an edge remembers. Beyond it: those without a door are forgotten.
pub const SITES_MAX: usize = 16_384;
/// Host names an edge remembers, also those that are nobody's. Beyond it: all are asked for again.
pub const NAMES_MAX: usize = 16_384;
/// Longest time a signed preview URL works. Beyond it: refused when made.
pub const SIGNED_URL_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Bytes of the access log held back to be written at once. They are written after a second at the latest.
pub const ACCESS_LOG_BUFFER_BYTES: usize = 64 * 1024;
/// Bytes of the access log's file. Beyond it: it is put aside as `.1` and a new one begun.
pub const ACCESS_LOG_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Files of the access log that were put aside. Beyond it: the oldest is removed.
pub const ACCESS_LOG_OLD_FILES_MAX: u32 = 3;
