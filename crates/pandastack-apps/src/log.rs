//! The log of a deployment. Beyond [`DEPLOY_LOG_LINES_MAX`] lines, only the platform's own lines are kept.

use std::sync::Arc;

use async_trait::async_trait;
use axum::response::Response;
use pandastack_rest::line_log::{self, LineLog, LineStore, LogChanges, LogLimits, LogWriter, last_state};
use pandastack_sandboxes::machine::LineSink;
use pandastack_store::StoreError;
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_types::limits::{DEPLOY_LOG_LINE_BYTES_MAX, DEPLOY_LOG_LINES_MAX};
use pandastack_types::{AppId, DeploymentId, Result};

use crate::state::Apps;

/// Prefix of lines of the platform.
pub(crate) const OURS: &str = "==> ";

const LIMITS: LogLimits = LogLimits {
    lines_max: DEPLOY_LOG_LINES_MAX,
    line_bytes_max: DEPLOY_LOG_LINE_BYTES_MAX,
    full: "==> the log is full: further output is dropped",
};

/// The writing end of a log.
#[derive(Clone)]
pub(crate) struct Log(LineLog);

impl Log {
    /// Opens the log of a deployment and appends lines to it.
    pub(crate) async fn open(apps: &Arc<Apps>, deployment: &DeploymentRecord) -> Result<(Self, LogWriter)> {
        let (log, writer) = LineLog::open(DeploymentLog::new(apps, deployment), LIMITS).await?;
        Ok((Self(log), writer))
    }

    /// Logs a message of the platform.
    pub(crate) async fn write(&self, sentence: impl AsRef<str>) {
        for part in sentence.as_ref().lines() {
            self.0.platform_line(last_state(&format!("{OURS}{part}"))).await;
        }
    }
}

#[async_trait]
impl LineSink for Log {
    async fn line(&self, line: &str) {
        self.0.output(last_state(line)).await;
    }
}

/// Appends one message of the platform to a log that has no writer.
pub(crate) async fn append(apps: &Apps, id: &DeploymentId, sentence: &str) -> pandastack_store::Result<()> {
    let next = apps.store.count_log(id).await?;
    let line = LIMITS.shortened(last_state(&format!("{OURS}{sentence}")));
    apps.store.append_log(id, next, &[line]).await?;
    apps.activity.logs.notify(id);
    apps.activity.notify();
    Ok(())
}

/// The log as server-sent events: until the deployment ends, or the lines so far.
pub(crate) fn respond(apps: &Arc<Apps>, deployment: &DeploymentRecord, follow: bool) -> Response {
    let changes = LogChanges {
        lines: apps.activity.logs.subscribe(deployment.id.clone()),
        ends: apps.activity.follow(),
        shutdown: apps.background.shutdown.clone(),
    };
    line_log::respond(DeploymentLog::new(apps, deployment), changes, 0, follow)
}

/// The lines of one deployment.
struct DeploymentLog {
    apps: Arc<Apps>,
    app: AppId,
    id: DeploymentId,
}

impl DeploymentLog {
    fn new(apps: &Arc<Apps>, deployment: &DeploymentRecord) -> Self {
        Self { apps: Arc::clone(apps), app: deployment.app.clone(), id: deployment.id.clone() }
    }
}

#[async_trait]
impl LineStore for DeploymentLog {
    fn name(&self) -> String {
        format!("deployment {}", self.id)
    }

    async fn count(&self) -> Result<u64> {
        Ok(self.apps.store.count_log(&self.id).await?)
    }

    async fn append(&self, first: u64, lines: &[String]) -> Result<()> {
        self.apps.store.append_log(&self.id, first, lines).await?;
        self.apps.activity.logs.notify(&self.id);
        Ok(())
    }

    async fn read(&self, first: u64, limit: u32) -> Result<Vec<String>> {
        Ok(self.apps.store.log_lines(&self.id, first, limit).await?)
    }

    /// Returns whether lines may still follow: the process that works on a deployment is the last
    /// to finish.
    async fn is_open(&self) -> Result<bool> {
        if self.apps.activity.is_running(&self.id) {
            return Ok(true);
        }
        match self.apps.store.deployment(&self.app, &self.id).await {
            Ok(now) => Ok(now.status.is_in_progress()),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
