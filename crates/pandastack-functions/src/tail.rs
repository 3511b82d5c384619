//! Live output of functions for current followers. Runs keep the output; nothing is stored here.

use pandastack_function_proto::Stream;
use pandastack_types::{FunctionId, RunId};
use serde::Serialize;
use tokio::sync::broadcast;

/// Lines that a slow follower may lag behind; beyond it the follower gets the number of dropped
/// lines.
const LINES_BUFFERED_MAX: usize = 256;

/// A line of output.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    #[serde(skip)]
    pub(crate) function: FunctionId,
    pub(crate) run: RunId,
    pub(crate) stream: Stream,
    pub(crate) text: String,
}

/// Broadcasts output as it is printed.
pub(crate) struct Tails(broadcast::Sender<Line>);

impl Default for Tails {
    fn default() -> Self {
        Self(broadcast::Sender::new(LINES_BUFFERED_MAX))
    }
}

impl Tails {
    /// Sends a line to all followers.
    pub(crate) fn send(&self, line: Line) {
        let _ = self.0.send(line);
    }

    /// Follows all output from now on.
    pub(crate) fn follow(&self) -> broadcast::Receiver<Line> {
        self.0.subscribe()
    }
}
