//! The log of a build.
//!
//! Lines have the form that people know from image builds: `#3 [3/7] RUN make` begins a step, `#3 0.512
//! text` is a line that its command printed after so many seconds, `#3 DONE 2.1s`, `#3 CACHED` or `#3
//! ERROR: ...` ends it. Past [`BUILD_LOG_LINES_MAX`] lines the output of commands is dropped.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use axum::response::Response;
use pandastack_rest::line_log::{self, LineLog, LineStore, LogChanges, LogLimits, LogWriter, last_state};
use pandastack_sandboxes::machine::LineSink;
use pandastack_store::StoreError;
use pandastack_store::templates::BuildRecord;
use pandastack_types::limits::{BUILD_LOG_LINE_BYTES_MAX, BUILD_LOG_LINES_MAX};
use pandastack_types::{BuildId, Result, WorkspaceId};

use crate::service::Templates;

const LIMITS: LogLimits = LogLimits {
    lines_max: BUILD_LOG_LINES_MAX,
    line_bytes_max: BUILD_LOG_LINE_BYTES_MAX,
    full: "the log is full: further output is dropped",
};

/// The writing end of a log.
#[derive(Clone)]
pub(crate) struct Log(LineLog);

impl Log {
    /// Opens the log of a build and appends lines to it.
    pub(crate) async fn open(templates: &Arc<Templates>, build: &BuildRecord) -> Result<(Self, LogWriter)> {
        let (log, writer) = LineLog::open(StoredLog::new(templates, build), LIMITS).await?;
        Ok((Self(log), writer))
    }

    /// Logs a message of the platform.
    pub(crate) async fn write(&self, line: &str) {
        self.0.platform_line(line).await;
    }

    /// Starts a step.
    pub(crate) async fn step(&self, number: usize, total: usize, text: &str) -> StepLog {
        let first = text.lines().next().unwrap_or_default();
        self.write(&format!("#{number} [{number}/{total}] {first}")).await;
        StepLog { log: self.clone(), number, began: Instant::now() }
    }
}

/// The log of one step.
pub(crate) struct StepLog {
    log: Log,
    number: usize,
    began: Instant,
}

impl StepLog {
    /// Ends the step.
    pub(crate) async fn end(&self, how: &str) {
        self.log.write(&format!("#{} {how}", self.number)).await;
    }
}

#[async_trait]
impl LineSink for StepLog {
    async fn line(&self, line: &str) {
        let (line, after) = (last_state(line), self.began.elapsed().as_secs_f64());
        self.log.0.output(&format!("#{} {after:.3} {line}", self.number)).await;
    }
}

/// The log from a line on, as server-sent events: present lines, or with `follow` all until the build ends.
pub(crate) fn respond(templates: &Arc<Templates>, build: &BuildRecord, first: u64, follow: bool) -> Response {
    let changes = LogChanges {
        lines: templates.logs.subscribe(build.id.clone()),
        ends: templates.follow(),
        shutdown: templates.background.shutdown.clone(),
    };
    line_log::respond(StoredLog::new(templates, build), changes, first, follow)
}

/// The lines of one build.
struct StoredLog {
    templates: Arc<Templates>,
    workspace: WorkspaceId,
    id: BuildId,
}

impl StoredLog {
    fn new(templates: &Arc<Templates>, build: &BuildRecord) -> Self {
        Self { templates: Arc::clone(templates), workspace: build.workspace.clone(), id: build.id.clone() }
    }
}

#[async_trait]
impl LineStore for StoredLog {
    fn name(&self) -> String {
        format!("template build {}", self.id)
    }

    async fn count(&self) -> Result<u64> {
        Ok(self.templates.store.count_build_log(&self.id).await?)
    }

    async fn append(&self, first: u64, lines: &[String]) -> Result<()> {
        self.templates.store.append_build_log(&self.id, first, lines).await?;
        self.templates.logs.notify(&self.id);
        Ok(())
    }

    async fn read(&self, first: u64, limit: u32) -> Result<Vec<String>> {
        Ok(self.templates.store.build_log(&self.id, first, limit).await?)
    }

    async fn is_open(&self) -> Result<bool> {
        if self.templates.is_running(&self.id) {
            return Ok(true);
        }
        match self.templates.store.build(&self.workspace, &self.id).await {
            Ok(now) => Ok(now.state.is_in_progress()),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
