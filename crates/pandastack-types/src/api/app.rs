//! Apps: a source that is built, served under a stable address, and replaced without a failed request.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppDatabase, AppPreviews};
use crate::{AppId, DeploymentId, SandboxId, SandboxState, WorkspaceId};

/// `POST /v1/apps`. Without `git_url` the app is deployed by uploads or from sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateApp {
    /// Name, and the first label of its address.
    #[serde(default)]
    pub name: String,
    /// Everything else.
    #[serde(flatten)]
    pub settings: AppSettings,
    /// Environment, as if each were set with scope `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Template of its machines; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Virtual processors; the template's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory; the template's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

/// `PATCH /v1/apps/{id}`. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UpdateApp {
    /// Settings.
    #[serde(flatten)]
    pub settings: AppSettings,
    /// Variables to set. One that is there keeps its scope and stage, and stays a secret; others stay. `********`, as secrets are
    /// shown, changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Template of its machines, from the next build on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Virtual processors, from the next build on; 0 for the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory, from the next build on; 0 for the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

/// What can be said when an app is made and changed afterwards. What is absent stays as it is; an empty text takes a setting back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppSettings {
    /// Repository: `https://...`, `http://...`, `ssh://git@host/path` or `git@host:path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_url: Option<String>,
    /// Branch that is deployed; `main` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_branch: Option<String>,
    /// Password or token for the repository. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_token: Option<String>,
    /// Private key for a repository by ssh, without a passphrase. Never shown again. Without one the app has a key of its
    /// own, whose public half is `git_public_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_deploy_key: Option<String>,
    /// Keys of the repository's host, as lines of ssh's `known_hosts`; without them, those that it shows first. An empty
    /// text forgets both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_known_hosts: Option<String>,
    /// Kind of the repository's host, where it is told how deployments go; by its deliveries or name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_host: Option<GitHost>,
    /// Address of that host's API, where it is not where such hosts have it. An empty text takes it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_api_url: Option<String>,
    /// Kind of app, instead of looking: `next`, `vite`, `cra`, `node`, `python`, `static`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Installs dependencies, instead of what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// Builds, instead of what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
    /// Starts the server, instead of what was found. It listens on 0.0.0.0 and `$PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// Directory of the app within its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_directory: Option<String>,
    /// The app's `$PORT`; 8080 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Path that must answer with a status below 500 before a version goes live; `/` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_path: Option<String>,
    /// Seconds without a request before it sleeps; 300 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// Machines that stay awake whoever looks, at most `max_instances`; 0 when absent, so that it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_instances: Option<u32>,
    /// Machines that serve it, 1 to 10; 1 when absent. Those beyond `min_instances` sleep until there is enough to do. The live version
    /// follows a change at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// Secret of its webhook. An empty text closes the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<String>,
    /// Looks at the repository every so many seconds, for hosts that tell of no pushes; 0 ends that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_seconds: Option<u64>,
    /// Which pull requests get a preview; `branches` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previews: Option<AppPreviews>,
}

/// A kind of repository host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitHost {
    /// GitHub, also on a host of one's own.
    Github,
    /// GitLab.
    Gitlab,
    /// Gitea and Forgejo.
    Gitea,
}

/// Where an app stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AppStatus {
    /// It was never deployed.
    Created,
    /// Its first version is being built.
    Building,
    /// It serves.
    Running,
    /// It sleeps, and wakes with the next request.
    Hibernated,
    /// No version serves, and the last deployment failed.
    Error,
    /// Its machine was lost or stopped.
    Stopped,
}

/// An app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct App {
    /// Its id.
    pub id: AppId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Name, and the first label of its address.
    pub name: String,
    /// Repository; empty for one that is deployed by uploads.
    pub git_url: String,
    /// Branch that is deployed.
    pub git_branch: String,
    /// Kind of the repository's host, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_host: Option<GitHost>,
    /// What the host of a repository by ssh is to be given, so that it knows the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_public_key: Option<String>,
    /// Keys that the host of a repository by ssh must show: those that were said, else those of the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_known_hosts: Option<String>,
    /// Kind of app: as said, else as found by the last build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// As said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// As said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
    /// As said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// As said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_directory: Option<String>,
    /// Its `$PORT`.
    pub port: u16,
    /// Path of the health check.
    pub health_path: String,
    /// Seconds without a request before it sleeps.
    pub idle_timeout_seconds: u64,
    /// Machines that never sleep.
    #[serde(default)]
    pub min_instances: u32,
    /// Machines that serve it; those beyond `min_instances` sleep until there is enough to do.
    #[serde(default = "one")]
    pub max_instances: u32,
    /// Environment; secrets are masked.
    pub env: BTreeMap<String, String>,
    /// Template of its machines.
    pub template: String,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// The machine that serves; the first one of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// All machines that serve, in the order in which they are used.
    #[serde(default)]
    pub instances: Vec<AppInstance>,
    /// The version that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deployment_id: Option<DeploymentId>,
    /// Where it stands.
    pub status: AppStatus,
    /// Its address, as the caller would reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where its repository may tell of pushes, if it has a webhook secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// Seconds between two looks at its repository, if it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_seconds: Option<u64>,
    /// Which pull requests get a preview.
    #[serde(default)]
    pub previews: AppPreviews,
    /// Databases that it reaches, by their variables.
    #[serde(default)]
    pub databases: Vec<AppDatabase>,
    /// The app that this one is a preview of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_of: Option<AppId>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last changed or deployed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

fn one() -> u32 {
    1
}

/// A machine that serves an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppInstance {
    /// The machine.
    pub sandbox_id: SandboxId,
    /// Where it stands; `failed` also if it is gone, until it is replaced.
    pub status: SandboxState,
}

/// `POST /v1/apps/{id}/deploys` with JSON; the body may be empty. An archive (`application/x-tar`, `application/gzip`)
/// as the body is the source itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployApp {
    /// Branch, tag or commit; the head of the app's branch when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// A running sandbox that has the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sandbox: Option<SandboxId>,
    /// The directory there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Install everything anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clear_cache: bool,
}

/// `POST /v1/apps/{id}/rollback`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RollbackApp {
    /// The version to return to; the one before the live one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<DeploymentId>,
}

/// Where a deployment stands.
///
/// ```text
///   queued --> building --> deploying --> live --> superseded | rolled_back
///      |          |             |
///      +----------+-------------+--> failed | canceled | superseded
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentStatus {
    /// It waits for its turn.
    Queued,
    /// Its source is fetched, its dependencies installed, and it is built.
    Building,
    /// It is started and checked.
    Deploying,
    /// It serves.
    Live,
    /// A newer one took its place.
    Superseded,
    /// It did not come to serve.
    Failed,
    /// Somebody stopped it.
    Canceled,
    /// It served, and an older one was preferred.
    RolledBack,
}

impl DeploymentStatus {
    /// Its name in the API and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Building => "building",
            Self::Deploying => "deploying",
            Self::Live => "live",
            Self::Superseded => "superseded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::RolledBack => "rolled_back",
        }
    }

    /// The status of that name.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Queued,
            Self::Building,
            Self::Deploying,
            Self::Live,
            Self::Superseded,
            Self::Failed,
            Self::Canceled,
            Self::RolledBack,
        ];
        all.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether the deployment still has work to do.
    pub fn is_in_progress(self) -> bool {
        matches!(self, Self::Queued | Self::Building | Self::Deploying)
    }
}

/// One deployment of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Deployment {
    /// Its id.
    pub id: DeploymentId,
    /// The app.
    pub app_id: AppId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Where it stands.
    pub status: DeploymentStatus,
    /// What began it: `api`, `upload`, `sandbox`, `push`, `pull_request`, `poll`, `rollback`, `restart`, `recovery`,
    /// `scale`.
    pub trigger: String,
    /// Commit that was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Branch, tag or commit that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Kind of app that was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// The machine that serves it, or served it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// The version that a rollback or restart returned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_deployment_id: Option<DeploymentId>,
    /// Whether a rollback to it would find it.
    pub kept: bool,
    /// The whole log; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_logs: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// When it went live, failed or was overtaken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
}

/// `POST /v1/apps/{id}/domains`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AddAppDomain {
    /// A name such as `www.example.com`.
    #[serde(default)]
    pub domain: String,
}

/// A name that leads to an app beside its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDomain {
    /// The name.
    pub domain: String,
    /// The app.
    pub app_id: AppId,
    /// `pending` until the TXT record proves it, then `active`: requests reach the app once DNS leads here.
    pub status: String,
    /// What to know about DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_note: Option<String>,
    /// Entries to make in DNS.
    pub records: Vec<DnsRecord>,
    /// When it was added.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was proven, or else added.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// An entry to make in DNS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DnsRecord {
    /// `CNAME` or `TXT`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of which name.
    pub name: String,
    /// What it says.
    pub value: String,
    /// `routing` or `ownership`.
    pub purpose: String,
}

/// `GET /v1/apps/{id}/domains`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDomainList {
    /// By name.
    pub domains: Vec<AppDomain>,
}

/// Answer to a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HookAnswer {
    /// The deployment it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<DeploymentId>,
    /// The preview that it is about. Without a deployment, it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Why it began none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_found_by_its_name() {
        for name in
            ["queued", "building", "deploying", "live", "superseded", "failed", "canceled", "rolled_back"]
        {
            let status = DeploymentStatus::parse(name).unwrap();
            assert_eq!(status.as_str(), name);
            assert_eq!(serde_json::to_value(status).unwrap(), name);
        }
        assert_eq!(DeploymentStatus::parse("nope"), None);
    }

    #[test]
    fn a_create_is_flat() {
        let create: CreateApp =
            serde_json::from_str(r#"{"name":"a","git_url":"https://x/y","port":3000,"env":{"A":"b"}}"#)
                .unwrap();
        assert_eq!(
            (create.settings.port, create.settings.git_url.as_deref()),
            (Some(3000), Some("https://x/y"))
        );
    }
}
