//! Limits of the edge, each with what happens beyond it.

use std::time::Duration;

/// Requests that may wait for one sandbox to wake. Beyond it: 503 with `Retry-After`.
pub const HELD_REQUESTS_MAX: usize = 1_000;
/// Longest time that a request waits for its sandbox to wake. Beyond it: 503 with `Retry-After`.
pub const HELD_WAIT: Duration = Duration::from_secs(30);
/// Requests, streams and tunnels in flight to one sandbox. Beyond it: 503 with `Retry-After`.
pub const REQUESTS_PER_SANDBOX_MAX: usize = 16_384;
/// Requests in flight to one machine of an app before the next one is used; when all have as many, the least busy gets more.
pub const REQUESTS_PER_INSTANCE: usize = 10;
/// Time for which an app's unreachable machine is passed over while there are others.
pub const AVOIDED_FOR: Duration = Duration::from_secs(5);
/// Connections of one client address. Beyond it: closed at once.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 12_288;
/// Connections of one listen address. Beyond it: closed at once.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Bytes of a request's head, and of each direction's buffer. Beyond it: 431.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header lines of a request. Beyond it: 431. The HTTP library keeps this number on the stack; for
/// any other it allocates and fills 8 KiB with every head.
pub const HEADER_LINES_MAX: usize = 100;
/// Longest time for a head to arrive, and for a kept connection to stay silent. Beyond it: closed.
pub const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Longest silence of a client within a body that is waited for. Beyond it: 408. Once the guest
/// answers, and for gRPC, client and guest talk to each other, and either may take its time.
pub const BODY_WAIT: Duration = Duration::from_secs(60);
/// Longest time for which a client may take nothing of an answer. Beyond it: closed. Upgraded
/// connections are not answers.
pub const SEND_WAIT: Duration = Duration::from_secs(60);
/// Silence of a client before TCP keepalive checks whether it is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Interval of TCP keepalive probes, and their number. Beyond it: closed.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE_INTERVAL`].
pub const KEEPALIVE_COUNT: u32 = 3;
/// Silence of an HTTP/2 client before it is sent a PING.
pub const PING_AFTER: Duration = Duration::from_secs(30);
/// Longest time for the answer to that PING. Beyond it: closed.
pub const PING_WAIT: Duration = Duration::from_secs(20);
/// Requests that one HTTP/2 connection may have in flight. Beyond it: the client waits.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of one request body. Beyond it: 413. Bodies stream; memory does not grow with it.
pub const BODY_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Idle connections kept to one port of one sandbox. Beyond it: the oldest is closed.
pub const IDLE_UPSTREAMS_MAX: usize = 128;
/// Longest time for a guest to accept a connection. Beyond it: 504.
pub const DIAL_WAIT: Duration = Duration::from_secs(10);
/// Time for requests in flight to end when the edge stops. Beyond it: cut.
pub const STOP_WAIT: Duration = Duration::from_secs(5);
/// Time for which a guest keeps running so that streams that are cut can close in an orderly way. Beyond
/// it: it stops.
pub const PARTING_WAIT: Duration = Duration::from_secs(1);
/// Time for a WebSocket's current frame to end before the stream is cut. Beyond it: closed without
/// a close frame.
pub const FRAME_WAIT: Duration = Duration::from_millis(500);
/// Time for a guest to answer the close frame of a WebSocket that is cut. Beyond it: closed.
pub const GOODBYE_WAIT: Duration = Duration::from_millis(400);
/// Time for a client to answer it.
pub const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Inactivity after which a stop no longer waits for a stream of unknown length.
pub const STILL_AFTER: Duration = Duration::from_millis(500);
/// A grant without a byte for this long is reported as idle to its agent.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Sandboxes an edge remembers. Beyond it: those without a grant are forgotten.
pub const SITES_MAX: usize = 16_384;
/// Host names that an edge remembers, including unknown ones. Beyond it: all are looked up again.
pub const NAMES_MAX: usize = 16_384;
/// Longest time a signed preview URL works. Beyond it: refused when made.
pub const SIGNED_URL_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Bytes of the access log held back to be written at once. They are written after a second at the latest.
pub const ACCESS_LOG_BUFFER_BYTES: usize = 64 * 1024;
/// Bytes of the access log's file. Beyond it: it is rotated to `.1` and a new file started.
pub const ACCESS_LOG_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Rotated files of the access log. Beyond it: the oldest is removed.
pub const ACCESS_LOG_OLD_FILES_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use pandastack_types::grant::{DRAIN_SECONDS, HOLD_SECONDS};

    use super::*;

    #[test]
    fn stream_close_timeouts_end_before_the_waits_of_their_callers() {
        assert!(FRAME_WAIT + GOODBYE_WAIT < PARTING_WAIT);
        assert!(STILL_AFTER < Duration::from_secs(DRAIN_SECONDS));
        assert!(FRAME_WAIT + CLOSE_WAIT < STOP_WAIT);
        let agent_waits = Duration::from_secs(HOLD_SECONDS);
        assert!(Duration::from_secs(DRAIN_SECONDS) + PARTING_WAIT < agent_waits);
    }
}
