//! Limits of the PostgreSQL edge, each with what happens beyond it.

use std::time::Duration;

/// Bytes of a startup packet, as PostgreSQL itself allows. Beyond it the connection is closed with an error.
pub const STARTUP_BYTES_MAX: usize = 10_000;
/// Longest time for a client to identify itself, TLS included. Beyond it the connection is closed.
pub const STARTUP_WAIT: Duration = Duration::from_secs(15);
/// Silence after which keepalive probes a client, and the interval between probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Questions without an answer after which its session ends.
pub const KEEPALIVE_COUNT: u32 = 3;
/// Connections of one listener. Beyond it: error 53300.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Bytes of one message during a login. Beyond it the connection is closed.
pub const LOGIN_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all parameters that a server reports at a login. Beyond it the login fails.
pub const GREETING_BYTES_MAX: usize = 64 * 1024;
/// Longest time for a login by the broker, once connected.
pub const LOGIN_WAIT: Duration = Duration::from_secs(15);
/// Longest time for which a client is held while its server takes no sessions. Beyond it it gets
/// the server's own error.
pub const NOT_YET_WAIT: Duration = Duration::from_secs(30);
/// Pause before such a server is tried again.
pub const NOT_YET_PAUSE: Duration = Duration::from_millis(200);
/// Largest error that may get another hint. A larger one passes unchanged.
pub const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Longest time to find an explanation of an error. Beyond it the error passes unchanged.
pub const EXPLAIN_WAIT: Duration = Duration::from_secs(10);
/// Bytes held in each direction of a session.
pub const RELAY_BUFFER_BYTES: usize = 16 * 1024;
/// Bytes of a request to the broker. Beyond it: 413.
pub const QUERY_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Longest time for such a body to arrive. Beyond it: 400.
pub const QUERY_BODY_WAIT: Duration = Duration::from_secs(60);
/// Bytes of one result of the broker. Beyond it: 507, and the query is cancelled.
pub const RESULT_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Statements of one transaction over HTTP. Beyond it: 400.
pub const BATCH_STATEMENTS_MAX: usize = 1_000;
/// Parameters of one statement, as the protocol allows. Beyond it: 400.
pub const PARAMETERS_MAX: usize = 65_535;
/// Default time limit of a statement over HTTP. Beyond it it is cancelled: error 57014.
pub const QUERY_WAIT: Duration = Duration::from_secs(60);
/// Bytes of one WebSocket message. Beyond it the socket is closed.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
