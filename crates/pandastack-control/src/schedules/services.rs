//! What a schedule needs of functions and databases.

use std::time::Duration;

use async_trait::async_trait;
use pandastack_types::ErrorCode;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{FunctionTarget, SqlTarget};

use crate::error::{ApiError, ApiResult};
use crate::store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};

/// How an invocation ended.
pub(crate) struct Invoked {
    /// `success`, `error` or `timeout`.
    pub(crate) state: RunState,
    /// Its output; what is longer than a run may keep is cut.
    pub(crate) outcome: RunOutcome,
}

/// Functions and databases, as schedules use them.
#[async_trait]
pub(crate) trait Services: Send + Sync {
    /// Refuses a function that a schedule of the workspace cannot invoke.
    async fn check_function(&self, workspace: &WorkspaceId, target: &FunctionTarget) -> ApiResult<()>;
    /// Refuses a database that a schedule of the workspace cannot use.
    async fn check_database(&self, workspace: &WorkspaceId, target: &SqlTarget) -> ApiResult<()>;
    /// Invokes a function and waits for it. The run's id and attempt name this try.
    async fn invoke_function(
        &self,
        schedule: &ScheduleRecord,
        run: &RunRecord,
        target: &FunctionTarget,
        timeout: Duration,
    ) -> ApiResult<Invoked>;
    /// Runs SQL and answers what it said.
    async fn run_sql(
        &self,
        schedule: &ScheduleRecord,
        target: &SqlTarget,
        timeout: Duration,
    ) -> ApiResult<String>;
}

/// A server without either.
pub(crate) struct NoServices;

fn absent(what: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotImplemented,
        format!(
            "{what}: not there yet on this server; schedules can call HTTP, run commands and move sandboxes"
        ),
    )
}

#[async_trait]
impl Services for NoServices {
    async fn check_function(&self, _: &WorkspaceId, _: &FunctionTarget) -> ApiResult<()> {
        Err(absent("functions"))
    }

    async fn check_database(&self, _: &WorkspaceId, _: &SqlTarget) -> ApiResult<()> {
        Err(absent("databases"))
    }

    async fn invoke_function(
        &self,
        _: &ScheduleRecord,
        _: &RunRecord,
        _: &FunctionTarget,
        _: Duration,
    ) -> ApiResult<Invoked> {
        Err(absent("functions"))
    }

    async fn run_sql(&self, _: &ScheduleRecord, _: &SqlTarget, _: Duration) -> ApiResult<String> {
        Err(absent("databases"))
    }
}
