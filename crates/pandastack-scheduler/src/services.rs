//! The interface to functions and databases as targets of schedules; the server provides it.

use std::time::Duration;

use async_trait::async_trait;
use pandastack_types::api::{FunctionTarget, SqlTarget};
use pandastack_types::{Result, WorkspaceId};

use crate::attempt::Attempt;

/// Operations of other services that schedules use.
#[async_trait]
pub trait Services: Send + Sync {
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

    /// Runs SQL as the database's owner; answers its rows as JSON.
    async fn run_sql(&self, workspace: &WorkspaceId, target: &SqlTarget, timeout: Duration)
    -> Result<String>;
}
