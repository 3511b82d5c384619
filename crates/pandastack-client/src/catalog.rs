//! Templates and their builds, keys, hosts.

use pandastack_types::BuildId;
use pandastack_types::api::{
    Build, CreateToken, Host, Me, PatchWorkspace, Quota, QuotaReport, Template, TokenCreated, TokenInfo,
    Workspace,
};
use reqwest::Method;

use crate::client::{Events, LOOK_SECONDS, List};
use crate::{Client, Result};

/// Lines of a build's log, as they are written.
pub struct BuildLogs(Events);

impl Client {
    /// Every template.
    pub async fn list_templates(&self) -> Result<Vec<Template>> {
        let list: List<Template> = self.call(Method::GET, &["templates"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// One template, by name or alias.
    pub async fn get_template(&self, name: &str) -> Result<Template> {
        self.call(Method::GET, &["templates", name], LOOK_SECONDS).receive().await
    }

    /// Begins or joins the bake of a template.
    pub async fn bake_template(&self, name: &str) -> Result<Build> {
        self.call(Method::POST, &["templates", name, "bake"], LOOK_SECONDS).receive().await
    }

    /// One build.
    pub async fn get_build(&self, id: &BuildId) -> Result<Build> {
        self.call(Method::GET, &["templates", "builds", id.as_str()], LOOK_SECONDS).receive().await
    }

    /// A build's log from its beginning to its end.
    pub async fn follow_build(&self, id: &BuildId) -> Result<BuildLogs> {
        let call = self.open_ended_call(Method::GET, &["templates", "builds", id.as_str(), "logs"]);
        call.query(&[("follow", "1")]).events().await.map(BuildLogs)
    }

    /// What the workspace may have, and has.
    pub async fn quota(&self) -> Result<QuotaReport> {
        self.call(Method::GET, &["me", "quota"], LOOK_SECONDS).receive().await
    }

    /// Sets what the workspace may have.
    pub async fn set_quota(&self, quota: &Quota) -> Result<QuotaReport> {
        self.call(Method::PUT, &["me", "quota"], LOOK_SECONDS).json(quota).receive().await
    }

    /// The workspace, and what it gives to new sandboxes.
    pub async fn workspace(&self) -> Result<Workspace> {
        self.call(Method::GET, &["me", "workspace"], LOOK_SECONDS).receive().await
    }

    /// Changes what it gives to new sandboxes.
    pub async fn patch_workspace(&self, patch: &PatchWorkspace) -> Result<Workspace> {
        self.call(Method::PATCH, &["me", "workspace"], LOOK_SECONDS).json(patch).receive().await
    }

    /// Keys of the workspace, without their secrets.
    pub async fn list_tokens(&self) -> Result<Vec<TokenInfo>> {
        let list: List<TokenInfo> = self.call(Method::GET, &["me", "tokens"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Makes a key. Its secret is in this answer and nowhere else.
    pub async fn create_token(&self, request: &CreateToken) -> Result<TokenCreated> {
        self.call(Method::POST, &["me", "tokens"], LOOK_SECONDS).json(request).receive().await
    }

    /// Deletes a key by its public part.
    pub async fn delete_token(&self, prefix: &str) -> Result<()> {
        self.call(Method::DELETE, &["me", "tokens", prefix], LOOK_SECONDS).finish().await
    }

    /// Whose key this is.
    pub async fn me(&self) -> Result<Me> {
        self.call(Method::GET, &["me"], LOOK_SECONDS).receive().await
    }

    /// Hosts, as operators see them.
    pub async fn list_hosts(&self) -> Result<Vec<Host>> {
        let list: List<Host> = self.call(Method::GET, &["hosts"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }
}

impl BuildLogs {
    /// The next line; `None` when the build has ended.
    pub async fn next(&mut self) -> Result<Option<String>> {
        match self.0.next().await? {
            Some(event) if event.name == "done" => Ok(None),
            Some(event) => Ok(Some(event.data)),
            None => Err(self.0.interrupted("the build's end was not reported".to_owned())),
        }
    }
}
