//! Templates and their builds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::template_build::{ReadyCheck, StartBuild};
use super::template_changes::TemplateChanges;
use crate::{BuildId, SnapshotId, WorkspaceId};

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Template name.
    pub name: String,
    /// Alternative names.
    pub aliases: Vec<String>,
    /// Human-readable label.
    pub label: String,
    /// Description of the contents.
    pub description: String,
    /// Category in the catalogue.
    pub category: String,
    /// Image or template that this one is built from.
    pub base: String,
    /// Installed programs.
    pub tools: Vec<String>,
    /// vCPUs of its sandboxes.
    pub cpu: u32,
    /// Memory of its sandboxes, in MiB.
    pub memory_mb: u32,
    /// Size of the files on a host that has the template; 0 if no host has it.
    pub size_bytes: u64,
    /// Whether the template comes with the platform, rather than from a workspace.
    pub is_global: bool,
    /// `ready`, `baking`, `unbaked` or `failed`.
    pub status: TemplateStatus,
    /// Reason why the last build failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Volume that each sandbox of this template gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<TemplateVolume>,
    /// Version that was built or published; absent for templates that come with the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<TemplateVersion>,
    /// Who else may use the template; absent unless the workspace owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<TemplateSharing>,
    /// Workspace that shares the template; absent unless another workspace owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<WorkspaceId>,
}

/// Workspaces that may use a template of another workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateSharing {
    /// Share with all workspaces.
    #[serde(default)]
    pub public: bool,
    /// Workspaces to share with.
    #[serde(default)]
    pub workspaces: Vec<WorkspaceId>,
}

/// The version of a template that is used without a tag.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateVersion {
    /// Build that created the version.
    pub build_id: String,
    /// Creation time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Timestamp>,
    /// Tags of the template, sorted by name.
    pub tags: Vec<TemplateTag>,
    /// How sandboxes of this version run commands.
    pub config: ImageConfig,
    /// Command that runs in every sandbox from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// Check that the start command is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
    /// What the rebuild that created the version changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<TemplateChanges>,
}

/// A tag, which points to one version of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateTag {
    /// Tag name.
    pub tag: String,
    /// Build that the tag points to.
    pub build_id: BuildId,
    /// Time when the tag was set.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// Process settings from a Dockerfile or an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ImageConfig {
    /// Environment variables for all commands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Default user of commands: `name` or `uid`, optionally with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default working directory of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Entry point of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Arguments of the entry point, or the program if there is no entry point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// Shell for the shell form of `RUN`, `CMD` and `ENTRYPOINT`; empty means `/bin/sh -c`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Ports that the image declares with `EXPOSE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Paths that the image declares with `VOLUME`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Labels of the image.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Signal that stops the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Health check command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Vec<String>>,
}

/// Request body of `POST /v1/templates/builds`. Without `start`, the build waits for files and for
/// `.../start`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBuild {
    /// Template name. The template is created on first use.
    pub name: String,
    /// Tags of the version, besides `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Leave `latest` as it is. The version needs other `tags`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_latest: bool,
    /// Human-readable description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// vCPUs of its sandboxes. Default: from the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB, a multiple of 128. Default: from the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Keep the build files as a snapshot, and secrets and credentials sealed, so that the version can be
    /// rebuilt. Without them, nothing needs to be kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_inputs: bool,
    /// Start the build immediately, without files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartBuild>,
}

/// Request body of `POST /v1/templates/publish`, which publishes a snapshot as a template version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishTemplate {
    /// Snapshot to publish. The snapshot is kept.
    pub snapshot_id: SnapshotId,
    /// Template name. The template is created on first use.
    pub name: String,
    /// Tags of the version, besides `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Human-readable description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Request body of `POST /v1/templates/builds/{id}/files/sign`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBuildFiles {
    /// Validity in seconds. Default: 1 hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// Request body of `PUT /v1/templates/{name}/tags/{tag}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTemplateTag {
    /// Build that the tag points to: a finished build of the same template.
    pub build_id: BuildId,
}

/// Details of a failed build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BuildFailure {
    /// Step number, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Line number in the Dockerfile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Instruction that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Exit code of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Last lines of the command's output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
    /// Snapshot of the machine of the failed step, if the build was started with `debug`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// How that step ran commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ImageConfig>,
}

/// A volume that each sandbox of a template gets, as a copy of the template's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateVolume {
    /// Mount path.
    pub path: String,
    /// Size in MiB.
    pub size_mb: u64,
}

/// Status of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateStatus {
    /// Not built on any host; the first sandbox builds it.
    Unbaked,
    /// Being built.
    Baking,
    /// Ready to create sandboxes from.
    Ready,
    /// The last build failed; the next sandbox builds it again.
    Failed,
}

/// A template build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Build ID.
    pub id: BuildId,
    /// Template name.
    pub name: String,
    /// `queued`, `running`, `done` or `failed`.
    pub status: BuildStatus,
    /// Current phase.
    pub phase: String,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Cause of the failure on the host. Shown to operator keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Start time.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Log lines so far. Beyond a limit, the oldest are dropped.
    #[serde(default)]
    pub log: Vec<String>,
    /// Tags of the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Number of steps taken from the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_steps: Option<usize>,
    /// Total number of steps, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Details of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<BuildFailure>,
    /// Build that a rebuild repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_of: Option<BuildId>,
    /// What a rebuild changed, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<TemplateChanges>,
}

/// Status of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// Waiting for files, or for other builds.
    Queued,
    /// In progress.
    Running,
    /// Finished.
    Done,
    /// Failed.
    Failed,
}
