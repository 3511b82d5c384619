//! The interface to apps, functions, databases and templates as targets of schedules; the server provides it.

use std::time::Duration;

use async_trait::async_trait;
use pandastack_types::api::{AppTarget, FunctionTarget, SqlTarget, TemplateTarget};
use pandastack_types::{AppId, BuildId, Result, WorkspaceId};

use crate::attempt::Attempt;

/// An app that a schedule calls.
#[derive(Debug, Clone)]
pub struct CalledApp {
    /// The app's id.
    pub id: AppId,
    /// The app's address, as its owner reaches it.
    pub address: String,
}

/// Operations of other services that schedules use.
#[async_trait]
pub trait Services: Send + Sync {
    /// Refuses an app that the workspace does not have.
    async fn check_app(&self, workspace: &WorkspaceId, target: &AppTarget) -> Result<()>;

    /// The app of a target.
    async fn find_app(&self, workspace: &WorkspaceId, target: &AppTarget) -> Result<CalledApp>;

    /// Refuses a function that the workspace does not have.
    async fn check_function(&self, workspace: &WorkspaceId, target: &FunctionTarget) -> Result<()>;

    /// Refuses a database that the workspace does not have.
    async fn check_database(&self, workspace: &WorkspaceId, target: &SqlTarget) -> Result<()>;

    /// Invokes the function's live version and waits for it. Handlers find the attempt in their context.
    async fn invoke_function(
        &self,
        workspace: &WorkspaceId,
        target: &FunctionTarget,
        attempt: u32,
    ) -> Result<Attempt>;

    /// Runs SQL as the database's owner; returns its rows as JSON.
    async fn run_sql(&self, workspace: &WorkspaceId, target: &SqlTarget, timeout: Duration)
    -> Result<String>;

    /// Refuses a template that cannot be rebuilt.
    async fn check_template(&self, workspace: &WorkspaceId, target: &TemplateTarget) -> Result<()>;

    /// Starts a rebuild.
    async fn start_rebuild(&self, workspace: &WorkspaceId, target: &TemplateTarget) -> Result<BuildId>;

    /// Waits for the end of a build; returns what it changed.
    async fn finish_rebuild(&self, workspace: &WorkspaceId, build: &BuildId) -> Result<String>;

    /// Cancels a build, if it has not ended.
    async fn cancel_rebuild(&self, workspace: &WorkspaceId, build: &BuildId) -> Result<()>;
}
