//! Rows of apps as the program sees them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::api::{AppPreviews, DeploymentStatus, EnvScope, EnvStage, GitHost, GithubRepoId};
use pandastack_types::limits::{IDLE_SECONDS_DEFAULT, TTL_SECONDS_MAX};
use pandastack_types::{AppId, DatabaseId, DeploymentId, SandboxId, SnapshotId, WorkspaceId};
use serde::{Deserialize, Serialize};

pub use super::cache::Shape;
pub use super::says::{Said, SourceSays};
use super::{HEALTH_PATH_DEFAULT, PORT_DEFAULT};

/// An app.
#[derive(Debug, Clone, PartialEq)]
pub struct AppRecord {
    /// Its id.
    pub id: AppId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// First label of its address.
    pub name: String,
    /// Grows with every change; see [`super::store::AppStore::put_app`].
    pub revision: i64,
    /// The version that serves.
    pub active: Option<DeploymentId>,
    /// The app that it is a preview of.
    pub preview_of: Option<AppId>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed or deployed.
    pub updated_at: Timestamp,
    /// The rest.
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

/// What no query selects on. New fields need a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AppSpec {
    /// Repository, if it has one.
    pub git_url: Option<String>,
    /// Branch.
    pub git_branch: Option<String>,
    /// Password or token for the repository.
    pub git_token: Option<String>,
    /// Private key for the repository, as said; without one the app has its own.
    pub git_deploy_key: Option<String>,
    /// Keys of the repository's host, as said.
    pub git_known_hosts: Option<String>,
    /// The same, as that host showed them first.
    pub git_known_hosts_seen: Option<String>,
    /// Kind of the repository's host, as said.
    pub git_host: Option<GitHost>,
    /// The same, as its last delivery told.
    pub git_host_seen: Option<GitHost>,
    /// Address of that host's API, as said.
    pub git_api_url: Option<String>,
    /// The repository, as its last delivery from GitHub told.
    pub github_repo_id: Option<GithubRepoId>,
    /// As said.
    pub framework: Option<String>,
    /// As said.
    pub install_command: Option<String>,
    /// As said.
    pub build_command: Option<String>,
    /// As said.
    pub start_command: Option<String>,
    /// As said.
    pub root_directory: Option<String>,
    /// `$PORT`.
    pub port: u16,
    /// Path of the health check.
    pub health_path: String,
    /// Which of these were said of the app itself, so that its source has no word in them.
    pub said: Said,
    /// Idle seconds before it sleeps.
    pub idle_timeout_seconds: u64,
    /// Machines that never sleep.
    pub min_instances: u32,
    /// Machines that serve a version.
    pub max_instances: u32,
    /// Template of its machines.
    pub template: String,
    /// Virtual processors, if other than the template's.
    pub cpu: Option<u32>,
    /// Memory, if other than the template's.
    pub memory_mb: Option<u32>,
    /// Secret of its webhook.
    pub webhook_secret: Option<String>,
    /// Which pull requests get a preview.
    pub previews: AppPreviews,
    /// When somebody last said that; not known of what was said before this was noted.
    pub previews_said_at: Option<Timestamp>,
    /// Pull requests that were closed, and when: a delivery from before brings no preview back.
    pub closed_pulls: BTreeMap<u32, Timestamp>,
    /// What a preview is a preview of.
    pub pull: Option<PullSpec>,
    /// Seconds between two looks at the repository, if it is looked at.
    pub poll_seconds: Option<u64>,
    /// Grows whenever that is set, even to the same.
    pub poll_asked: u64,
    /// Variables by name.
    pub env: BTreeMap<String, EnvEntry>,
    /// Databases that it reaches, by the variable with their address.
    pub databases: BTreeMap<String, AttachedDatabase>,
    /// A machine with installed dependencies, from which builds begin.
    pub cache: Option<SnapshotId>,
    /// What that machine is; not known of those that were kept before this was noted.
    pub cache_shape: Option<Shape>,
    /// It is being deleted: its machines go first, then its row.
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
            said: Said::default(),
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

    /// After how many idle seconds a machine that serves sleeps, by its place among them. One that never does may be idle for as long
    /// as can be said.
    pub fn idle_seconds(&self, place: usize) -> u64 {
        if self.never_sleeps(place) { TTL_SECONDS_MAX } else { self.idle_timeout_seconds }
    }

    /// Whether a machine that serves stays awake, by its place among them.
    pub fn never_sleeps(&self, place: usize) -> bool {
        place < self.min_instances as usize
    }

    /// Notes what somebody says of its previews.
    pub fn say_previews(&mut self, previews: AppPreviews, at: Timestamp) {
        (self.previews, self.previews_said_at) = (previews, Some(at));
    }

    /// Variables that its machines see: an app not those of previews, a preview not those of production, and one of a
    /// fork no secret.
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
    /// Its number.
    pub number: u32,
    /// Its title.
    pub title: String,
    /// Branch that it would merge.
    pub branch: String,
    /// Its address.
    pub url: Option<String>,
    /// Its newest commit.
    pub commit: String,
    /// Whether the branch is of another repository.
    pub fork: bool,
    /// When it was last changed, by its host's clock.
    pub told_at: Option<Timestamp>,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvEntry {
    /// Its value.
    pub value: String,
    /// Never shown.
    #[serde(default)]
    pub secret: bool,
    /// Which deployments see it.
    #[serde(default)]
    pub scope: EnvScope,
    /// When it is there.
    #[serde(default)]
    pub stage: EnvStage,
    /// When it was set.
    pub updated_at: Timestamp,
}

/// What a workspace says of a repository of GitHub.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewRepoRecord {
    /// The repository.
    pub id: GithubRepoId,
    /// Its `owner/name`, if somebody said it.
    pub full_name: Option<String>,
    /// Since when its pull requests get previews; `None` if nobody said that they do.
    pub enabled_at: Option<Timestamp>,
    /// When something was first said of it.
    pub created_at: Timestamp,
    /// Variables of its previews by name.
    pub env: BTreeMap<String, EnvEntry>,
}

impl PreviewRepoRecord {
    /// One of which nothing is said yet.
    pub fn new(id: GithubRepoId, at: Timestamp) -> Self {
        Self { id, full_name: None, enabled_at: None, created_at: at, env: BTreeMap::new() }
    }

    /// Whether there is nothing to remember.
    pub fn is_needless(&self) -> bool {
        self.enabled_at.is_none() && self.env.is_empty()
    }
}

/// A database that an app reaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachedDatabase {
    /// The database.
    pub database: DatabaseId,
    /// Which deployments reach it.
    pub scope: EnvScope,
    /// Whether builds reach it too.
    #[serde(default)]
    pub build: bool,
}

/// A deployment.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentRecord {
    /// Its id.
    pub id: DeploymentId,
    /// The app.
    pub app: AppId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Where it stands.
    pub status: DeploymentStatus,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was over, or live.
    pub finished_at: Option<Timestamp>,
    /// The rest.
    pub spec: DeploymentSpec,
}

/// Where the source comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The app's repository.
    #[default]
    Git,
    /// An archive that lies in the build machine already.
    Archive,
    /// What an earlier deployment built.
    Artifact,
}

/// What no query selects on. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// Where the source comes from.
    pub source: Source,
    /// What began it.
    pub trigger: String,
    /// Branch, tag or commit that was asked for.
    pub git_ref: Option<String>,
    /// Commit that was built.
    pub git_commit: Option<String>,
    /// Commit that the branch was at before the push that began it.
    pub git_before: Option<String>,
    /// The delivery that began it, as its host calls it.
    pub delivery: Option<String>,
    /// Address of the app, as whoever asked for this would reach it.
    pub address: Option<String>,
    /// The deployment whose version this one returns to.
    pub from: Option<DeploymentId>,
    /// Begin without what earlier builds installed.
    pub clear_cache: bool,
    /// Kind of app that was found.
    pub framework: Option<String>,
    /// How it is started, with its variables.
    pub start: Option<StartSpec>,
    /// The machine that builds it.
    pub build_machine: Option<SandboxId>,
    /// What that is, if it was made before its turn: the app's settings may have changed since.
    pub build_shape: Option<Shape>,
    /// What was built: a machine ready to start.
    pub artifact: Option<SnapshotId>,
    /// The machine that serves it, the first one of several.
    pub machine: Option<SandboxId>,
    /// Further machines that serve it.
    pub more_machines: Vec<SandboxId>,
    /// How often it was begun; a restart of the server begins it again.
    pub attempts: u32,
    /// How often it was queued again after it failed.
    pub retries: u32,
    /// Why it failed.
    pub error: Option<String>,
}

impl DeploymentSpec {
    /// All machines that serve it, in the order in which they are used.
    pub fn machines(&self) -> impl Iterator<Item = &SandboxId> {
        self.machine.iter().chain(&self.more_machines)
    }

    /// Notes which machines serve it.
    pub fn set_machines(&mut self, machines: impl IntoIterator<Item = SandboxId>) {
        let mut machines = machines.into_iter();
        self.machine = machines.next();
        self.more_machines = machines.collect();
    }
}

/// How a built version is started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartSpec {
    /// The command.
    pub command: String,
    /// Its directory.
    pub directory: String,
    /// Its `$PORT` when it was last started.
    pub port: u16,
    /// Variables that the kind of app wants, beside the app's own.
    pub env: BTreeMap<String, String>,
    /// What the source says of itself.
    pub source: SourceSays,
}

impl DeploymentRecord {
    /// One that waits for its turn.
    pub fn queued(app: &AppRecord, trigger: &str, at: Timestamp) -> Self {
        Self {
            id: DeploymentId::random(),
            app: app.id.clone(),
            workspace: app.workspace.clone(),
            status: DeploymentStatus::Queued,
            created_at: at,
            updated_at: at,
            finished_at: None,
            spec: DeploymentSpec { trigger: trigger.to_owned(), ..DeploymentSpec::default() },
        }
    }

    /// One that brings back what another built, in new machines unless some are given to it.
    pub fn returning_to(app: &AppRecord, target: &Self, trigger: &str, at: Timestamp) -> Self {
        let mut new = Self::queued(app, trigger, at);
        let old = &target.spec;
        new.spec.source = Source::Artifact;
        new.spec.from = Some(target.id.clone());
        new.spec.git_ref.clone_from(&old.git_ref);
        new.spec.git_commit.clone_from(&old.git_commit);
        new.spec.framework.clone_from(&old.framework);
        new.spec.start.clone_from(&old.start);
        new.spec.artifact.clone_from(&old.artifact);
        new
    }

    /// Whether it has to be built: a rollback, a restart and what mends begin from what is.
    pub fn builds(&self) -> bool {
        self.spec.artifact.is_none() && self.spec.from.is_none()
    }

    /// Whether its delivery began one of these before: a crash came before the delivery was noted.
    pub fn is_delivered(&self, all: &[Self]) -> bool {
        self.spec.delivery.is_some() && all.iter().any(|one| one.spec.delivery == self.spec.delivery)
    }

    /// Whether some machine serves both.
    pub fn shares_machines(&self, other: &Self) -> bool {
        self.spec.machines().any(|machine| other.spec.machines().any(|one| one == machine))
    }
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
}
