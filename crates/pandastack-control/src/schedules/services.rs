//! Functions and databases as targets of schedules.

use std::sync::Arc;
use std::time::Duration;

use pandastack_function_proto::Outcome;
use pandastack_types::api::{DatabaseQuery, FunctionTarget, RunKind, SqlTarget};
use pandastack_types::limits::DATABASE_QUERY_MS_MAX;
use pandastack_types::{DatabaseId, Error, Result, WorkspaceId};

use super::runner::Attempt;
use crate::app::App;
use crate::databases;
use crate::functions::invoke::{self, Asked};
use crate::functions::{self, routes::find_in};
use crate::store::databases::DatabaseRecord;
use crate::store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};

/// Refuses a function that the workspace does not have.
pub(super) async fn check_function(
    app: &App,
    workspace: &WorkspaceId,
    target: &FunctionTarget,
) -> Result<()> {
    find_in(app, workspace, &target.function_id).await.map(drop)
}

/// Refuses a database that the workspace does not have.
pub(super) async fn check_database(app: &App, workspace: &WorkspaceId, target: &SqlTarget) -> Result<()> {
    database(app, workspace, target).await.map(drop)
}

async fn database(app: &App, workspace: &WorkspaceId, target: &SqlTarget) -> Result<DatabaseRecord> {
    let unknown = |_| Error::not_found("database", &target.database_id);
    let id: DatabaseId = target.database_id.parse().map_err(unknown)?;
    Ok(app.store.database(Some(workspace), &id).await?)
}

/// Invokes the function's live version and waits for it. Handlers find the attempt in their context.
pub(super) async fn invoke_function(
    app: &Arc<App>,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    target: &FunctionTarget,
) -> Result<Attempt> {
    let function = find_in(app, &schedule.workspace, &target.function_id).await?;
    let version = functions::version_for(&function, None)?;
    let input = target.input.clone().unwrap_or_else(|| serde_json::json!({}));
    let event = serde_json::to_vec(&input).map_err(Error::internal)?;
    let asked = Asked { attempt: run.attempt, ..Asked::new(RunKind::Schedule, version, event.into()) };
    let answered = invoke::call(app, &function, asked).await?;
    let state = match answered.outcome {
        Outcome::Success => RunState::Success,
        Outcome::Timeout => RunState::Timeout,
        Outcome::Error | Outcome::Crashed => RunState::Error,
    };
    let outcome = RunOutcome {
        exit_code: answered.run.exit_code,
        stdout: String::from_utf8_lossy(&answered.body).into_owned(),
        stderr: answered.run.stderr,
        error: answered.run.error,
        sandbox: answered.run.sandbox_id,
        ..RunOutcome::default()
    };
    Ok(Attempt { state, outcome })
}

/// Runs SQL as the database's owner; answers its rows as JSON.
pub(super) async fn run_sql(
    app: &Arc<App>,
    schedule: &ScheduleRecord,
    target: &SqlTarget,
    timeout: Duration,
) -> Result<String> {
    let record = database(app, &schedule.workspace, target).await?;
    let wait_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).clamp(1, DATABASE_QUERY_MS_MAX);
    let query =
        DatabaseQuery { sql: target.sql.clone(), timeout_ms: Some(wait_ms), ..DatabaseQuery::default() };
    let rows = databases::run_query(&app.databases, &record, query).await?;
    serde_json::to_string(&rows).map_err(Error::internal)
}
