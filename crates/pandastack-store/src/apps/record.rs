//! The record of an app.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::api::{AppPreviews, EnvScope, EnvStage, GitHost, GithubRepoId};
use pandastack_types::limits::{IDLE_SECONDS_DEFAULT, TTL_SECONDS_MAX};
use pandastack_types::{AppId, DatabaseId, DeploymentId, SnapshotId, WorkspaceId};
use serde::{Deserialize, Serialize};

pub use super::cache::Shape;
pub use super::deployment::{DeploymentRecord, DeploymentSpec, Source, StartSpec};
pub use super::source_config::{ExplicitSettings, SourceConfig};

/// `$PORT` of an app that names none.
pub const PORT_DEFAULT: u16 = 8080;
/// Path of the health check of an app that names none.
pub const HEALTH_PATH_DEFAULT: &str = "/";

/// An app.
#[derive(Debug, Clone, PartialEq)]
pub struct AppRecord {
    /// The app's id.
    pub id: AppId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// First label of its address.
    pub name: String,
    /// Grows with every change; see [`super::AppStore::put_app`].
    pub revision: i64,
    /// The version that serves.
    pub active: Option<DeploymentId>,
    /// The app that it is a preview of.
    pub preview_of: Option<AppId>,
    /// Creation time.
    pub created_at: Timestamp,
    /// When it was last changed or deployed.
    pub updated_at: Timestamp,
    /// The other fields.
    pub spec: AppSpec,
}

impl AppRecord {
    /// A new one that serves nothing yet.
    pub fn new(workspace: WorkspaceId, name: String, spec: AppSpec, at: Timestamp) -> Self {
        Self {
            id: AppId::random(),
            workspace,
            name,
            revision: 1,
            active: None,
            preview_of: None,
            created_at: at,
            updated_at: at,
            spec,
        }
    }
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppSpec {
    /// Repository, if it has one.
    pub git_url: Option<String>,
    /// Branch.
    pub git_branch: Option<String>,
    /// Password or token for the repository.
    pub git_token: Option<String>,
    /// Configured private key for the repository; without one the app has its own.
    pub git_deploy_key: Option<String>,
    /// Configured keys of the repository's host.
    pub git_known_hosts: Option<String>,
    /// The same, recorded on the first connection to the host.
    pub git_known_hosts_seen: Option<String>,
    /// Configured kind of the repository's host.
    pub git_host: Option<GitHost>,
    /// The same, from its last webhook delivery.
    pub git_host_seen: Option<GitHost>,
    /// Configured address of that host's API.
    pub git_api_url: Option<String>,
    /// The repository, from its last GitHub delivery.
    pub github_repo_id: Option<GithubRepoId>,
    /// As configured.
    pub framework: Option<String>,
    /// As configured.
    pub install_command: Option<String>,
    /// As configured.
    pub build_command: Option<String>,
    /// As configured.
    pub start_command: Option<String>,
    /// As configured.
    pub root_directory: Option<String>,
    /// `$PORT`.
    pub port: u16,
    /// Path of the health check.
    pub health_path: String,
    /// Settings that were set on the app itself, so that the source cannot override them.
    pub said: ExplicitSettings,
    /// Idle seconds before it sleeps.
    pub idle_timeout_seconds: u64,
    /// Machines that never sleep.
    pub min_instances: u32,
    /// Machines that serve a version.
    pub max_instances: u32,
    /// Template of the machines.
    pub template: String,
    /// Virtual processors, if other than the template's.
    pub cpu: Option<u32>,
    /// Memory, if other than the template's.
    pub memory_mb: Option<u32>,
    /// Secret of its webhook.
    pub webhook_secret: Option<String>,
    /// Pull requests that get a preview.
    pub previews: AppPreviews,
    /// When that was last set; absent in records from before this was stored.
    pub previews_said_at: Option<Timestamp>,
    /// Closed pull requests, with the time: an earlier delivery does not reopen a preview.
    pub closed_pulls: BTreeMap<u32, Timestamp>,
    /// The pull request of a preview.
    pub pull: Option<PullSpec>,
    /// Seconds between two polls of the repository, if it is polled.
    pub poll_seconds: Option<u64>,
    /// Grows whenever that is set, even to the same.
    pub poll_asked: u64,
    /// Variables by name.
    pub env: BTreeMap<String, EnvEntry>,
    /// Databases that it reaches, by the variable with their address.
    pub databases: BTreeMap<String, AttachedDatabase>,
    /// A machine with installed dependencies, which builds start from.
    pub cache: Option<SnapshotId>,
    /// Shape of that machine; absent in records from before this was stored.
    pub cache_shape: Option<Shape>,
    /// The app is being deleted: its machines go first, then its row.
    pub deleting: bool,
}

impl Default for AppSpec {
    fn default() -> Self {
        Self {
            git_url: None,
            git_branch: None,
            git_token: None,
            git_deploy_key: None,
            git_known_hosts: None,
            git_known_hosts_seen: None,
            git_host: None,
            git_host_seen: None,
            git_api_url: None,
            github_repo_id: None,
            framework: None,
            install_command: None,
            build_command: None,
            start_command: None,
            root_directory: None,
            port: PORT_DEFAULT,
            health_path: HEALTH_PATH_DEFAULT.to_owned(),
            said: ExplicitSettings::default(),
            idle_timeout_seconds: IDLE_SECONDS_DEFAULT,
            min_instances: 0,
            max_instances: 1,
            template: "base".to_owned(),
            cpu: None,
            memory_mb: None,
            webhook_secret: None,
            previews: AppPreviews::default(),
            previews_said_at: None,
            closed_pulls: BTreeMap::new(),
            pull: None,
            poll_seconds: None,
            poll_asked: 0,
            env: BTreeMap::new(),
            databases: BTreeMap::new(),
            cache: None,
            cache_shape: None,
            deleting: false,
        }
    }
}

impl AppSpec {
    /// Branch that is deployed.
    pub fn branch(&self) -> &str {
        self.git_branch.as_deref().unwrap_or("main")
    }

    /// Idle timeout of a serving machine in seconds, by its index. A machine that never sleeps has the
    /// largest value.
    pub fn idle_seconds(&self, place: usize) -> u64 {
        if self.never_sleeps(place) { TTL_SECONDS_MAX } else { self.idle_timeout_seconds }
    }

    /// Returns whether the instance at this index stays awake.
    pub fn never_sleeps(&self, place: usize) -> bool {
        place < self.min_instances as usize
    }

    /// Sets its previews, with the time of the change.
    pub fn set_previews(&mut self, previews: AppPreviews, at: Timestamp) {
        (self.previews, self.previews_said_at) = (previews, Some(at));
    }

    /// Variables that its machines see: an app not those of previews, a preview not those of
    /// production, and one of a fork no secret.
    pub fn seen_env(&self) -> impl Iterator<Item = (&String, &EnvEntry)> {
        self.env.iter().filter(|(_, entry)| match &self.pull {
            None => entry.scope != EnvScope::Preview,
            Some(pull) => entry.scope != EnvScope::Production && !(pull.fork && entry.secret),
        })
    }

    /// Databases that its machines reach, by the same rule; where they are is a secret.
    pub fn seen_databases(&self) -> impl Iterator<Item = (&String, &AttachedDatabase)> {
        self.databases.iter().filter(|(_, one)| match &self.pull {
            None => one.scope != EnvScope::Preview,
            Some(pull) => one.scope != EnvScope::Production && !pull.fork,
        })
    }

    /// Variables as builds get them, or the machines that serve.
    pub fn env_values(&self, stage: EnvStage) -> BTreeMap<String, String> {
        let there = self.seen_env().filter(|(_, entry)| entry.stage.is_in(stage));
        there.map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }
}

/// The pull request of a preview. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PullSpec {
    /// Pull request number.
    pub number: u32,
    /// Pull request title.
    pub title: String,
    /// Branch that it would merge.
    pub branch: String,
    /// Address of the pull request.
    pub url: Option<String>,
    /// Newest commit of the branch.
    pub commit: String,
    /// Whether the branch is in another repository.
    pub fork: bool,
    /// Time of its last change, by the clock of the Git host.
    pub told_at: Option<Timestamp>,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvEntry {
    /// Value of the variable.
    pub value: String,
    /// Never shown.
    #[serde(default)]
    pub secret: bool,
    /// Deployments that see the variable.
    #[serde(default)]
    pub scope: EnvScope,
    /// Stages in which the variable is set.
    #[serde(default)]
    pub stage: EnvStage,
    /// Time at which the variable was set.
    pub updated_at: Timestamp,
}

/// Settings of a workspace for a GitHub repository.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewRepoRecord {
    /// The repository.
    pub id: GithubRepoId,
    /// The repository's `owner/name`, if it was given.
    pub full_name: Option<String>,
    /// Time since which its pull requests get previews; `None` if they do not.
    pub enabled_at: Option<Timestamp>,
    /// Time at which the first setting was made.
    pub created_at: Timestamp,
    /// Variables of its previews by name.
    pub env: BTreeMap<String, EnvEntry>,
}

impl PreviewRepoRecord {
    /// A record without settings.
    pub fn new(id: GithubRepoId, at: Timestamp) -> Self {
        Self { id, full_name: None, enabled_at: None, created_at: at, env: BTreeMap::new() }
    }

    /// Returns whether the record has no settings.
    pub fn is_needless(&self) -> bool {
        self.enabled_at.is_none() && self.env.is_empty()
    }
}

/// A database that an app reaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachedDatabase {
    /// The database.
    pub database: DatabaseId,
    /// Deployments that can use the database.
    pub scope: EnvScope,
    /// Whether builds can use the database too.
    #[serde(default)]
    pub build: bool,
}

/// A name that leads to an app.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainRecord {
    /// The name, in lowercase.
    pub domain: String,
    /// The app.
    pub app: AppId,
    /// When it was added.
    pub created_at: Timestamp,
    /// Time at which its ownership was verified; until then the domain leads nowhere.
    pub verified_at: Option<Timestamp>,
}
