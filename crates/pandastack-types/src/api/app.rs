//! Apps: deployed from a source, served at a stable address, and replaced without a failed request.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppDatabase, AppPreviews};
use crate::{AppId, DeploymentId, SandboxId, SandboxState, WorkspaceId};

/// Request body of `POST /v1/apps`. Without `git_url`, deploy the app from uploads or sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateApp {
    /// App name, which is also the first label of its host name.
    #[serde(default)]
    pub name: String,
    /// Other settings.
    #[serde(flatten)]
    pub settings: AppSettings,
    /// Environment variables, each with scope `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Template of the instances. Default: `base`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// vCPUs per instance. Default: from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory per instance in MiB. Default: from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

/// Request body of `PATCH /v1/apps/{id}`. Omitted settings are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UpdateApp {
    /// Settings to change.
    #[serde(flatten)]
    pub settings: AppSettings,
    /// Variables to set. Existing variables keep their scope, stage and secrecy; others are not changed. The
    /// value `********`, which masks secrets in responses, changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Template of the instances, from the next build on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// vCPUs per instance, from the next build on; 0 for the template's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory per instance in MiB, from the next build on; 0 for the template's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

/// Settings of an app. Omitted settings are kept; an empty string resets a setting to its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppSettings {
    /// Git repository: `https://...`, `http://...`, `ssh://git@host/path` or `git@host:path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_url: Option<String>,
    /// Branch to deploy. Default: `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_branch: Option<String>,
    /// Password or token for the repository. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_token: Option<String>,
    /// Private key for an SSH repository, without a passphrase. Never shown again. Default: a generated key,
    /// whose public part is `git_public_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_deploy_key: Option<String>,
    /// SSH host keys of the Git host, as `known_hosts` lines. Default: the keys seen first. An empty string
    /// forgets both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_known_hosts: Option<String>,
    /// Kind of Git host, for reporting deployment status. Default: detected from its webhooks or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_host: Option<GitHost>,
    /// API URL of the Git host, if it is not the standard one. An empty string resets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_api_url: Option<String>,
    /// Framework: `next`, `vite`, `cra`, `node`, `python` or `static`. Default: detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Command to install dependencies. Default: detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// Command to build the app. Default: detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
    /// Command to start the server, which must listen on 0.0.0.0 and `$PORT`. Default: detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// Subdirectory of the source that contains the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_directory: Option<String>,
    /// Port that the app listens on, passed as `$PORT`. Default: 8080.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Health check path. It must return a status below 500 before a version goes live. Default: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_path: Option<String>,
    /// Seconds without a request before the app sleeps. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// Minimum number of instances, which never sleep; at most `max_instances`. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_instances: Option<u32>,
    /// Maximum number of instances, 1 to 10. Those beyond `min_instances` sleep until they are needed.
    /// Changes apply to the live version immediately. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// Webhook secret. An empty string disables the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<String>,
    /// Seconds between polls of the repository, for Git hosts without webhooks; 0 disables polling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_seconds: Option<u64>,
    /// Pull requests that get a preview. Default: `branches`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previews: Option<AppPreviews>,
}

/// Kind of Git host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitHost {
    /// GitHub, including GitHub Enterprise Server.
    Github,
    /// GitLab.
    Gitlab,
    /// Gitea and Forgejo.
    Gitea,
}

/// Status of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AppStatus {
    /// Never deployed.
    Created,
    /// The first version is being built.
    Building,
    /// Serving requests.
    Running,
    /// Asleep; the next request wakes it.
    Hibernated,
    /// No version is live, and the last deployment failed.
    Error,
    /// The machine was lost or stopped.
    Stopped,
}

/// An app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct App {
    /// App ID.
    pub id: AppId,
    /// Workspace of the app.
    pub workspace: WorkspaceId,
    /// App name, which is also the first label of its host name.
    pub name: String,
    /// Git repository; empty for an app that is deployed from uploads.
    pub git_url: String,
    /// Branch to deploy.
    pub git_branch: String,
    /// Kind of Git host, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_host: Option<GitHost>,
    /// SSH public key of the app, to add to the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_public_key: Option<String>,
    /// Accepted SSH host keys of the Git host: the configured ones, otherwise those seen first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_known_hosts: Option<String>,
    /// Framework: the configured one, otherwise the one that the last build detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Configured command to install dependencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// Configured command to build the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_command: Option<String>,
    /// Configured command to start the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// Configured subdirectory of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_directory: Option<String>,
    /// Port that the app listens on, passed as `$PORT`.
    pub port: u16,
    /// Health check path.
    pub health_path: String,
    /// Seconds without a request before the app sleeps.
    pub idle_timeout_seconds: u64,
    /// Minimum number of instances, which never sleep.
    #[serde(default)]
    pub min_instances: u32,
    /// Maximum number of instances; those beyond `min_instances` sleep until they are needed.
    #[serde(default = "one")]
    pub max_instances: u32,
    /// Environment variables; secrets are masked.
    pub env: BTreeMap<String, String>,
    /// Template of the instances.
    pub template: String,
    /// vCPUs per instance.
    pub cpu: u32,
    /// Memory per instance in MiB.
    pub memory_mb: u32,
    /// Sandbox of the first instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Instances of the live version, in the order in which they receive requests.
    #[serde(default)]
    pub instances: Vec<AppInstance>,
    /// Deployment that is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deployment_id: Option<DeploymentId>,
    /// Current status.
    pub status: AppStatus,
    /// URL of the app, as the caller can reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// URL for webhooks of the repository, if a webhook secret is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// Seconds between polls of the repository, if polling is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_seconds: Option<u64>,
    /// Pull requests that get a preview.
    #[serde(default)]
    pub previews: AppPreviews,
    /// Attached databases, by variable.
    #[serde(default)]
    pub databases: Vec<AppDatabase>,
    /// App that this preview belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_of: Option<AppId>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change or deployment.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

fn one() -> u32 {
    1
}

/// An instance of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppInstance {
    /// Sandbox of the instance.
    pub sandbox_id: SandboxId,
    /// Current state; also `failed` for a lost instance until it is replaced.
    pub status: SandboxState,
}

/// JSON request body of `POST /v1/apps/{id}/deploys`, or empty. To upload the source, send an archive instead
/// (`application/x-tar` or `application/gzip`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployApp {
    /// Branch, tag or commit. Default: the head of the app's branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Running sandbox that contains the source: an ID, a name, or the start of an ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sandbox: Option<SandboxId>,
    /// Directory of the source in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Build without the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clear_cache: bool,
}

/// Request body of `POST /v1/apps/{id}/rollback`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RollbackApp {
    /// Deployment to roll back to. Default: the one before the live one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<DeploymentId>,
}

/// Status of a deployment.
///
/// ```text
///   queued --> building --> deploying --> live --> superseded | rolled_back
///      |          |             |
///      +----------+-------------+--> failed | canceled | superseded
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentStatus {
    /// Waiting to start.
    Queued,
    /// Fetching the source, installing dependencies and building.
    Building,
    /// Starting instances and checking their health.
    Deploying,
    /// Serving requests.
    Live,
    /// Replaced by a newer deployment.
    Superseded,
    /// Failed before it went live.
    Failed,
    /// Canceled by a client.
    Canceled,
    /// Was live, then replaced by a rollback.
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

    /// Returns whether the deployment still has work to do.
    pub fn is_in_progress(self) -> bool {
        matches!(self, Self::Queued | Self::Building | Self::Deploying)
    }
}

/// A deployment of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Deployment {
    /// Deployment ID.
    pub id: DeploymentId,
    /// App ID.
    pub app_id: AppId,
    /// Workspace of the app.
    pub workspace: WorkspaceId,
    /// Current status.
    pub status: DeploymentStatus,
    /// Trigger: `api`, `upload`, `sandbox`, `push`, `pull_request`, `poll`, `rollback`, `restart`, `recovery`
    /// or `scale`.
    pub trigger: String,
    /// Commit that was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Requested branch, tag or commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Detected framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Sandbox of the first instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Deployment that a rollback or restart started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_deployment_id: Option<DeploymentId>,
    /// Whether the app can be rolled back to this deployment.
    pub kept: bool,
    /// Complete log; omitted in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_logs: Option<String>,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time of the request.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Time when the deployment went live, failed or was superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
}

/// Request body of `POST /v1/apps/{id}/domains`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AddAppDomain {
    /// Domain, such as `www.example.com`.
    #[serde(default)]
    pub domain: String,
}

/// A custom domain of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDomain {
    /// Domain name.
    pub domain: String,
    /// App ID.
    pub app_id: AppId,
    /// `pending` until the TXT record proves ownership, then `active`. Requests reach the app once DNS points
    /// here.
    pub status: String,
    /// Advice about the DNS setup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_note: Option<String>,
    /// DNS records to create.
    pub records: Vec<DnsRecord>,
    /// Time when the domain was added.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time when ownership was proven; before that, when the domain was added.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// A DNS record to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DnsRecord {
    /// Record type: `CNAME` or `TXT`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Record name.
    pub name: String,
    /// Record value.
    pub value: String,
    /// Purpose: `routing` or `ownership`.
    pub purpose: String,
}

/// Response of `GET /v1/apps/{id}/domains`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDomainList {
    /// Custom domains, sorted by name.
    pub domains: Vec<AppDomain>,
}

/// Response to a webhook delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HookAnswer {
    /// Deployment that the delivery started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<DeploymentId>,
    /// Preview that the delivery concerns. Without `deployment_id`, the preview is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Reason why no deployment was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deployment_status_parses_from_its_name() {
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
    fn app_settings_are_flattened_into_the_create_request() {
        let create: CreateApp =
            serde_json::from_str(r#"{"name":"a","git_url":"https://x/y","port":3000,"env":{"A":"b"}}"#)
                .unwrap();
        assert_eq!(
            (create.settings.port, create.settings.git_url.as_deref()),
            (Some(3000), Some("https://x/y"))
        );
    }
}
