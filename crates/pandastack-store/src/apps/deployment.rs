//! Records of deployments.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::api::DeploymentStatus;
use pandastack_types::{AppId, DeploymentId, SandboxId, SnapshotId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::cache::Shape;
use super::record::AppRecord;
use super::source_config::SourceConfig;

/// A deployment.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentRecord {
    /// The deployment's id.
    pub id: DeploymentId,
    /// The app.
    pub app: AppId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Current state.
    pub status: DeploymentStatus,
    /// Time of the request.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
    /// Time at which it ended or went live.
    pub finished_at: Option<Timestamp>,
    /// The other fields.
    pub spec: DeploymentSpec,
}

/// The source of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The app's repository.
    #[default]
    Git,
    /// An archive that lies in the build machine already.
    Archive,
    /// The build of an earlier deployment.
    Artifact,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// The source of a deployment.
    pub source: Source,
    /// Trigger of the deployment.
    pub trigger: String,
    /// Requested branch, tag or commit.
    pub git_ref: Option<String>,
    /// Commit that was built.
    pub git_commit: Option<String>,
    /// Commit that the branch was at before the push that began it.
    pub git_before: Option<String>,
    /// ID of the webhook delivery that started it.
    pub delivery: Option<String>,
    /// Address of the app, as the requesting client would reach it.
    pub address: Option<String>,
    /// The deployment whose version this one returns to.
    pub from: Option<DeploymentId>,
    /// Start without the dependencies of earlier builds.
    pub clear_cache: bool,
    /// Kind of app that was found.
    pub framework: Option<String>,
    /// Start command, with its variables.
    pub start: Option<StartSpec>,
    /// The machine that builds it.
    pub build_machine: Option<SandboxId>,
    /// Shape of that machine, if it was created early: the app's settings may have changed since.
    pub build_shape: Option<Shape>,
    /// The build result: a machine ready to start.
    pub artifact: Option<SnapshotId>,
    /// The machine that serves it, the first one of several.
    pub machine: Option<SandboxId>,
    /// Further machines that serve it.
    pub more_machines: Vec<SandboxId>,
    /// Number of times it was started; a restart of the server starts it again.
    pub attempts: u32,
    /// Number of times it was queued again after a failure.
    pub retries: u32,
    /// Reason for the failure.
    pub error: Option<String>,
}

impl DeploymentSpec {
    /// All machines that serve it, in the order in which they are used.
    pub fn machines(&self) -> impl Iterator<Item = &SandboxId> {
        self.machine.iter().chain(&self.more_machines)
    }

    /// Records which machines serve it.
    pub fn set_machines(&mut self, machines: impl IntoIterator<Item = SandboxId>) {
        let mut machines = machines.into_iter();
        self.machine = machines.next();
        self.more_machines = machines.collect();
    }
}

/// Start command of a built version, with directory, port and variables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartSpec {
    /// The command.
    pub command: String,
    /// Working directory of the command.
    pub directory: String,
    /// Value of `$PORT` at the last start.
    pub port: u16,
    /// Variables that the kind of app wants, beside the app's own.
    pub env: BTreeMap<String, String>,
    /// Settings from the source.
    pub source: SourceConfig,
}

impl DeploymentRecord {
    /// A queued deployment.
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

    /// A deployment that starts the build of another one, in new machines unless some are given.
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

    /// Returns whether the deployment has to be built. Rollbacks, restarts and repairs start from
    /// an existing version.
    pub fn builds(&self) -> bool {
        self.spec.artifact.is_none() && self.spec.from.is_none()
    }

    /// Returns whether its delivery already created one of these deployments: the server crashed
    /// before it recorded the delivery.
    pub fn is_delivered(&self, all: &[Self]) -> bool {
        self.spec.delivery.is_some() && all.iter().any(|one| one.spec.delivery == self.spec.delivery)
    }

    /// Returns whether some machine serves both deployments.
    pub fn shares_machines(&self, other: &Self) -> bool {
        self.spec.machines().any(|machine| other.spec.machines().any(|one| one == machine))
    }
}
