//! Apps, functions, databases and templates as targets of schedules.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_apps::Apps;
use pandastack_databases::ManagedDatabases;
use pandastack_function_proto::Outcome;
use pandastack_functions::invoke::{self, InvokeRequest};
use pandastack_functions::{Functions, find_in, version_for};
use pandastack_scheduler::{Attempt, CalledApp, Services};
use pandastack_store::databases::DatabaseRecord;
use pandastack_store::schedules::{RunOutcome, RunState};
use pandastack_store::templates::BuildState;
use pandastack_templates::{Templates, rebuild};
use pandastack_types::api::{AppTarget, DatabaseQuery, FunctionTarget, RunKind, SqlTarget, TemplateTarget};
use pandastack_types::limits::DATABASE_QUERY_MS_MAX;
use pandastack_types::{BuildId, DatabaseId, Error, ErrorCode, Result, WorkspaceId};

/// The services that schedules call.
pub(crate) struct ScheduleTargets {
    pub(crate) apps: Arc<Apps>,
    pub(crate) functions: Arc<Functions>,
    pub(crate) databases: Arc<ManagedDatabases>,
    pub(crate) templates: Arc<Templates>,
}

impl ScheduleTargets {
    async fn database(&self, workspace: &WorkspaceId, target: &SqlTarget) -> Result<DatabaseRecord> {
        let unknown = |_| Error::not_found("database", &target.database_id);
        let id: DatabaseId = target.database_id.parse().map_err(unknown)?;
        self.databases.find(workspace, &id).await
    }
}

#[async_trait]
impl Services for ScheduleTargets {
    async fn check_app(&self, workspace: &WorkspaceId, target: &AppTarget) -> Result<()> {
        self.apps.check_exists(workspace, &target.app_id).await
    }

    async fn find_app(&self, workspace: &WorkspaceId, target: &AppTarget) -> Result<CalledApp> {
        let (id, address) = self.apps.find_address(workspace, &target.app_id).await?;
        Ok(CalledApp { id, address })
    }

    async fn check_function(&self, workspace: &WorkspaceId, target: &FunctionTarget) -> Result<()> {
        find_in(&self.functions, workspace, &target.function_id).await.map(drop)
    }

    async fn check_database(&self, workspace: &WorkspaceId, target: &SqlTarget) -> Result<()> {
        self.database(workspace, target).await.map(drop)
    }

    async fn invoke_function(
        &self,
        workspace: &WorkspaceId,
        target: &FunctionTarget,
        attempt: u32,
    ) -> Result<Attempt> {
        let function = find_in(&self.functions, workspace, &target.function_id).await?;
        let version = version_for(&function, None)?;
        let input = target.input.clone().unwrap_or_else(|| serde_json::json!({}));
        let event = serde_json::to_vec(&input).map_err(Error::internal)?;
        let request =
            InvokeRequest { attempt, ..InvokeRequest::new(RunKind::Schedule, version, event.into()) };
        let answered = invoke::call(&self.functions, &function, request).await?;
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

    async fn run_sql(
        &self,
        workspace: &WorkspaceId,
        target: &SqlTarget,
        timeout: Duration,
    ) -> Result<String> {
        let record = self.database(workspace, target).await?;
        let wait_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).clamp(1, DATABASE_QUERY_MS_MAX);
        let query =
            DatabaseQuery { sql: target.sql.clone(), timeout_ms: Some(wait_ms), ..DatabaseQuery::default() };
        let rows = pandastack_databases::run_query(&self.databases, &record, query).await?;
        serde_json::to_string(&rows).map_err(Error::internal)
    }

    async fn check_template(&self, workspace: &WorkspaceId, target: &TemplateTarget) -> Result<()> {
        rebuild::check(&self.templates, workspace, &target.template).await
    }

    async fn start_rebuild(&self, workspace: &WorkspaceId, target: &TemplateTarget) -> Result<BuildId> {
        Ok(rebuild::start(&self.templates, workspace, &target.template).await?.id)
    }

    async fn finish_rebuild(&self, workspace: &WorkspaceId, build: &BuildId) -> Result<String> {
        let ended = rebuild::wait(&self.templates, workspace, build).await?;
        if ended.state != BuildState::Done {
            let why = ended.spec.error.unwrap_or_else(|| "no reason was reported".to_owned());
            return Err(Error::new(ErrorCode::Conflict, format!("build {build} failed: {why}")));
        }
        Ok(ended
            .spec
            .changes
            .map_or_else(|| "no changes are known".to_owned(), |changes| changes.to_string()))
    }

    async fn cancel_rebuild(&self, workspace: &WorkspaceId, build: &BuildId) -> Result<()> {
        rebuild::cancel(&self.templates, workspace, build).await
    }
}
