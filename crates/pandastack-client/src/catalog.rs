//! Templates, builds, API keys, workspaces and hosts.

use pandastack_types::BuildId;
use pandastack_types::api::{
    Build, CreateHostToken, CreateToken, CreateWorkspace, Host, HostMigration, HostToken, Me, MigrateHosts,
    OutdatedList, PatchWorkspace, Quota, QuotaReport, RotateToken, SuspendWorkspace, Template, TokenCreated,
    TokenInfo, Workspace, WorkspaceInfo,
};
use reqwest::Method;

use crate::client::{Client, Events, List, READ_SECONDS};
use crate::error::Result;

/// Longest time for the machines of a workspace to stop or be deleted.
const MOVE_SECONDS: u64 = 600;
/// Longest time for the hosts to read their frozen states.
const OUTDATED_SECONDS: u64 = 60;

/// Path of a workspace's keys; without a workspace, of the caller's own.
fn tokens<'a>(workspace: Option<&'a str>, rest: &[&'a str]) -> Vec<&'a str> {
    let start = match workspace {
        Some(workspace) => vec!["workspaces", workspace, "tokens"],
        None => vec!["me", "tokens"],
    };
    start.into_iter().chain(rest.iter().copied()).collect()
}

/// Lines of a build's log, streamed.
pub struct BuildLogs(Events);

impl Client {
    /// Every template.
    pub async fn list_templates(&self) -> Result<Vec<Template>> {
        let list: List<Template> = self.call(Method::GET, &["templates"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the template, by name or alias.
    pub async fn get_template(&self, name: &str) -> Result<Template> {
        self.call(Method::GET, &["templates", name], READ_SECONDS).receive().await
    }

    /// Starts a build of a template, or joins one in progress.
    pub async fn bake_template(&self, name: &str) -> Result<Build> {
        self.call(Method::POST, &["templates", name, "bake"], READ_SECONDS).receive().await
    }

    /// Returns the build.
    pub async fn get_build(&self, id: &BuildId) -> Result<Build> {
        self.call(Method::GET, &["templates", "builds", id.as_str()], READ_SECONDS).receive().await
    }

    /// Follows a build's log from the start until the build ends.
    pub async fn follow_build(&self, id: &BuildId) -> Result<BuildLogs> {
        let call = self.open_ended_call(Method::GET, &["templates", "builds", id.as_str(), "logs"]);
        call.query(&[("follow", "1")]).events().await.map(BuildLogs)
    }

    /// Quotas and current usage of the workspace.
    pub async fn quota(&self) -> Result<QuotaReport> {
        self.call(Method::GET, &["me", "quota"], READ_SECONDS).receive().await
    }

    /// Sets the quotas of the workspace.
    pub async fn set_quota(&self, quota: &Quota) -> Result<QuotaReport> {
        self.call(Method::PUT, &["me", "quota"], READ_SECONDS).json(quota).receive().await
    }

    /// The workspace and its defaults.
    pub async fn workspace(&self) -> Result<Workspace> {
        self.call(Method::GET, &["me", "workspace"], READ_SECONDS).receive().await
    }

    /// Changes the workspace's defaults for new sandboxes.
    pub async fn patch_workspace(&self, patch: &PatchWorkspace) -> Result<Workspace> {
        self.call(Method::PATCH, &["me", "workspace"], READ_SECONDS).json(patch).receive().await
    }

    /// API keys, without their secrets: of the key's own workspace, or of another one for operators.
    pub async fn list_tokens(&self, workspace: Option<&str>) -> Result<Vec<TokenInfo>> {
        let path = tokens(workspace, &[]);
        let list: List<TokenInfo> = self.call(Method::GET, &path, READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Creates an API key. Only this response contains its secret.
    pub async fn create_token(&self, workspace: Option<&str>, request: &CreateToken) -> Result<TokenCreated> {
        self.call(Method::POST, &tokens(workspace, &[]), READ_SECONDS).json(request).receive().await
    }

    /// Replaces the secret of an API key. Only this response contains the new one.
    pub async fn rotate_token(
        &self,
        workspace: Option<&str>,
        prefix: &str,
        request: &RotateToken,
    ) -> Result<TokenCreated> {
        let path = tokens(workspace, &[prefix, "rotate"]);
        self.call(Method::POST, &path, READ_SECONDS).json(request).receive().await
    }

    /// Revokes an API key by its prefix.
    pub async fn delete_token(&self, workspace: Option<&str>, prefix: &str) -> Result<()> {
        self.call(Method::DELETE, &tokens(workspace, &[prefix]), READ_SECONDS).finish().await
    }

    /// All workspaces of the installation. This and the following calls need an operator key.
    pub async fn list_workspaces(&self) -> Result<Vec<WorkspaceInfo>> {
        let list: List<WorkspaceInfo> =
            self.call(Method::GET, &["workspaces"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Creates a workspace.
    pub async fn create_workspace(&self, request: &CreateWorkspace) -> Result<WorkspaceInfo> {
        self.call(Method::POST, &["workspaces"], READ_SECONDS).json(request).receive().await
    }

    /// Returns the workspace.
    pub async fn get_workspace(&self, id: &str) -> Result<WorkspaceInfo> {
        self.call(Method::GET, &["workspaces", id], READ_SECONDS).receive().await
    }

    /// Deletes a workspace with everything in it.
    pub async fn delete_workspace(&self, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["workspaces", id], MOVE_SECONDS).finish().await
    }

    /// Suspends a workspace.
    pub async fn suspend_workspace(&self, id: &str, request: &SuspendWorkspace) -> Result<WorkspaceInfo> {
        self.call(Method::POST, &["workspaces", id, "suspend"], MOVE_SECONDS).json(request).receive().await
    }

    /// Resumes a suspended workspace.
    pub async fn resume_workspace(&self, id: &str) -> Result<WorkspaceInfo> {
        self.call(Method::POST, &["workspaces", id, "resume"], READ_SECONDS).receive().await
    }

    /// Quotas and current usage of a workspace.
    pub async fn workspace_quota(&self, id: &str) -> Result<QuotaReport> {
        self.call(Method::GET, &["workspaces", id, "quota"], READ_SECONDS).receive().await
    }

    /// Sets the quotas of a workspace.
    pub async fn set_workspace_quota(&self, id: &str, quota: &Quota) -> Result<QuotaReport> {
        self.call(Method::PUT, &["workspaces", id, "quota"], READ_SECONDS).json(quota).receive().await
    }

    /// Workspace and label of the API key in use.
    pub async fn me(&self) -> Result<Me> {
        self.call(Method::GET, &["me"], READ_SECONDS).receive().await
    }

    /// Sleeping sandboxes, snapshots and templates with outdated components; with `all`, of all
    /// workspaces.
    pub async fn outdated(&self, all: bool) -> Result<OutdatedList> {
        let call = self.call(Method::GET, &["outdated"], OUTDATED_SECONDS);
        if all { call.query(&[("all", "true")]) } else { call }.receive().await
    }

    /// All hosts.
    pub async fn list_hosts(&self) -> Result<Vec<Host>> {
        let list: List<Host> = self.call(Method::GET, &["hosts"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Creates a join token for a host.
    pub async fn create_host_token(&self, request: &CreateHostToken) -> Result<HostToken> {
        self.call(Method::POST, &["hosts", "tokens"], READ_SECONDS).json(request).receive().await
    }

    /// Moves hosts from the shared join secret to certificates.
    pub async fn migrate_hosts(&self, request: &MigrateHosts) -> Result<HostMigration> {
        self.call(Method::POST, &["hosts", "migrate"], READ_SECONDS).json(request).receive().await
    }

    /// Removes a host: its certificate is refused.
    pub async fn remove_host(&self, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["hosts", id], READ_SECONDS).finish().await
    }
}

impl BuildLogs {
    /// The next line; `None` when the build has ended.
    pub async fn next(&mut self) -> Result<Option<String>> {
        match self.0.next().await? {
            Some(event) if event.name == "done" => Ok(None),
            Some(event) => Ok(Some(event.data)),
            None => Err(self.0.interrupted("the server closed the log before the build ended".to_owned())),
        }
    }
}
