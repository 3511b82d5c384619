//! Limits of the E2B API. See also `docs/how-to/use-e2b-clients.md`.

use std::time::Duration;

use pandastack_types::limits::JSON_BODY_SECONDS_MAX;

/// Longest time for a body that is read whole to arrive. Beyond it: 408, or `invalid_argument` in Connect.
pub(crate) const BODY_WAIT: Duration = Duration::from_secs(JSON_BODY_SECONDS_MAX);
/// Metadata of a file: names of its extended attributes, and their values. Beyond it: 400.
pub(crate) const METADATA_BYTES_MAX: usize = 4096;
/// One message of a Connect request, and a unary body. Beyond it: `resource_exhausted`, or 413 outside of Connect.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one event of a native stream. Beyond it the stream ends with an error; native events are far smaller.
pub(crate) const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Items of one page of a list, even if a client requests more.
pub(crate) const PAGE_ITEMS_MAX: usize = 100;
/// Children of one fork. Beyond it: 400.
pub(crate) const FORKS_MAX: u32 = 100;
/// Events that a polled watcher keeps; beyond it the oldest go.
pub(crate) const WATCHER_EVENTS_MAX: usize = 4096;
/// PollResult watchers of all sandboxes. Beyond it: `resource_exhausted`.
pub(crate) const WATCHERS_MAX: usize = 1024;
/// Seconds without a poll after which a watcher is removed.
pub(crate) const WATCHER_IDLE_SECONDS: u64 = 300;
/// Answer of the native API that is read whole. Beyond it: 502.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// One event of a run in a code context: a result with its pictures, and its envelope. Beyond it
/// the execution ends with an error.
pub(crate) const RESULT_EVENT_BYTES_MAX: usize = pandastack_types::limits::CONTEXT_LINE_BYTES_MAX + 64 * 1024;
/// Seconds of silence after which a keepalive is sent, unless the client names another number.
pub(crate) const KEEPALIVE_SECONDS: u64 = 90;
/// Seconds of silence after which the interpreter sends a keepalive line.
pub(crate) const INTERPRETER_KEEPALIVE_SECONDS: u64 = 5;
/// Lifetime of a sandbox that names none.
pub(crate) const TIMEOUT_SECONDS_DEFAULT: u64 = 300;
/// The same in the older form of create.
pub(crate) const TIMEOUT_SECONDS_DEFAULT_V1: u64 = 15;
/// Lifetime of a fork that names none.
pub(crate) const FORK_TIMEOUT_SECONDS_DEFAULT: u64 = 15;
