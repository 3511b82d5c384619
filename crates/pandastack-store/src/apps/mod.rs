//! Records of apps.
//!
//! Must hold: the serving version changes in one transaction with the states of both versions
//! ([`AppStore::go_live`]), so that a crash leaves either the old one live or the new one, never
//! both or none.

pub mod cache;
pub mod deployment;
pub mod record;
pub mod source_config;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{DeploymentStatus, GithubRepoId};
use pandastack_types::{AppId, DeploymentId, WorkspaceId};

use self::record::{AppRecord, DeploymentRecord, DomainRecord, PreviewRepoRecord};
use crate::Result;

/// A deployment whose state was not yet reported to the repository's host.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreportedDeployment {
    /// The deployment.
    pub deployment: DeploymentRecord,
    /// Whether the start was reported to the Git host.
    pub is_start_reported: bool,
}

/// Apps, deployments, logs, names and deliveries.
#[async_trait]
pub trait AppStore: Send + Sync {
    /// Adds an app. Quota: `APPS_PER_WORKSPACE_MAX`, for a preview `PREVIEWS_PER_APP_MAX`; a name
    /// that is taken is refused.
    async fn insert_app(&self, app: &AppRecord) -> Result<()>;
    /// Returns the app of a workspace, or of any, by id or name.
    async fn app(&self, workspace: Option<&WorkspaceId>, id_or_name: &str) -> Result<AppRecord>;
    /// Apps of a workspace, or of all, with previews, oldest first.
    async fn apps(&self, workspace: Option<&WorkspaceId>) -> Result<Vec<AppRecord>>;
    /// Previews of an app, oldest first.
    async fn previews(&self, of: &AppId) -> Result<Vec<AppRecord>>;
    /// Replaces the settings of an app if they are unchanged since they were read. Returns `false`
    /// otherwise.
    async fn put_app(&self, app: &AppRecord) -> Result<bool>;
    /// Removes an app with all that belongs to it.
    async fn delete_app(&self, id: &AppId) -> Result<()>;

    /// Adds a deployment and forgets the oldest beyond `DEPLOYMENTS_PER_APP_MAX` that are over.
    async fn insert_deployment(&self, deployment: &DeploymentRecord) -> Result<()>;
    /// Adds a deployment unless `is_needless` rejects it, given the app's deployments, newest
    /// first. Returns `false` if it did. The check and the insert are one transaction, so no other
    /// deployment is added in between.
    async fn insert_deployment_unless(
        &self,
        deployment: &DeploymentRecord,
        is_needless: &(dyn for<'a> Fn(&'a [DeploymentRecord]) -> bool + Sync),
    ) -> Result<bool>;
    /// Returns the deployment of an app.
    async fn deployment(&self, app: &AppId, id: &DeploymentId) -> Result<DeploymentRecord>;
    /// Deployments of an app, newest first.
    async fn deployments(&self, app: &AppId) -> Result<Vec<DeploymentRecord>>;
    /// Deployments of all apps that have work to do, oldest first.
    async fn deployments_in_progress(&self) -> Result<Vec<DeploymentRecord>>;
    /// Writes a deployment if it still has the status that it was read with. `false` if it has another.
    async fn put_deployment(&self, deployment: &DeploymentRecord, was: DeploymentStatus) -> Result<bool>;
    /// Makes a deployment the live version and gives the one before it `replaced`.
    async fn go_live(&self, deployment: &DeploymentRecord, replaced: DeploymentStatus) -> Result<()>;

    /// Deployments with a status to report to the Git host, oldest first.
    async fn unreported_deployments(&self, limit: u32) -> Result<Vec<UnreportedDeployment>>;
    /// Records that the start of a deployment was reported, or its end, after which nothing is left to
    /// report.
    async fn mark_reported(&self, id: &DeploymentId, end: bool) -> Result<()>;

    /// Appends lines to a deployment's log, numbered from `first`.
    async fn append_log(&self, id: &DeploymentId, first: u64, lines: &[String]) -> Result<()>;
    /// Lines of a deployment's log from `first` on, at most `limit`.
    async fn log_lines(&self, id: &DeploymentId, first: u64, limit: u32) -> Result<Vec<String>>;
    /// Number of lines in a deployment's log.
    async fn count_log(&self, id: &DeploymentId) -> Result<u64>;

    /// Adds a name, or replaces another app's unverified claim of it. A proven one is refused.
    /// Quota: `DOMAINS_PER_APP_MAX`.
    async fn claim_domain(&self, domain: &DomainRecord) -> Result<()>;
    /// Names of an app.
    async fn domains(&self, app: &AppId) -> Result<Vec<DomainRecord>>;
    /// The app that a name leads to.
    async fn app_of_domain(&self, domain: &str) -> Result<Option<AppId>>;
    /// Removes a name.
    async fn delete_domain(&self, app: &AppId, domain: &str) -> Result<()>;

    /// Records that a delivery of a webhook was carried out.
    async fn note_delivery(&self, app: &AppId, delivery: &str, at: Timestamp) -> Result<()>;
    /// Returns whether a delivery of a webhook was already carried out.
    async fn has_delivery(&self, app: &AppId, delivery: &str) -> Result<bool>;
    /// Forgets deliveries older than that.
    async fn prune_deliveries(&self, before: Timestamp) -> Result<u64>;
}

/// Repositories of GitHub with previews, and variables of those.
#[async_trait]
pub trait PreviewRepoStore: Send + Sync {
    /// Repositories of a workspace, oldest first.
    async fn preview_repos(&self, workspace: &WorkspaceId) -> Result<Vec<PreviewRepoRecord>>;
    /// Changes a repository's record, created if it is absent, if `change` returns `true`; returns
    /// the resulting record. Reading and writing are one transaction. A record without settings is
    /// removed. Quota: `PREVIEW_REPOS_PER_WORKSPACE_MAX`.
    async fn change_preview_repo(
        &self,
        workspace: &WorkspaceId,
        id: GithubRepoId,
        at: Timestamp,
        change: &mut (dyn for<'a> FnMut(&'a mut PreviewRepoRecord) -> bool + Send),
    ) -> Result<PreviewRepoRecord>;
}
