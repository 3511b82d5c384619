//! Templates that workspaces make, their builds, tags and layers.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{
    BuildFailure, CreateBuild, ImageConfig, ReadyCheck, StartBuild, TemplateChanges,
};
use pandastack_types::{BuildId, SnapshotId, TemplateId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::Result;

/// The tag of the newest version, which a name without a tag means.
pub const LATEST: &str = "latest";

/// A template: a name of a workspace. Its versions are its finished builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRecord {
    /// The template's id, which stays when it is renamed.
    pub id: TemplateId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Name, unique in the workspace.
    pub name: String,
    /// When it was first built.
    pub created_at: Timestamp,
    /// The other fields.
    pub spec: TemplateSpec,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateSpec {
    /// Human-readable description.
    pub description: String,
}

/// Progress of a build.
///
/// ```text
///   waiting --start--> queued --> running --> done
///      |                  |          |
///      +------------------+----------+------> failed
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildState {
    /// For its files and its start.
    Waiting,
    /// For its turn.
    Queued,
    /// The build's steps run.
    Running,
    /// The build became a version of its template.
    Done,
    /// The build failed or was cancelled.
    Failed,
}

impl BuildState {
    const ALL: [Self; 5] = [Self::Waiting, Self::Queued, Self::Running, Self::Done, Self::Failed];

    /// The name in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The state of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Returns whether the build is in progress.
    pub fn is_in_progress(self) -> bool {
        matches!(self, Self::Waiting | Self::Queued | Self::Running)
    }
}

/// A build of a template.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildRecord {
    /// The build's id.
    pub id: BuildId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// The build's template.
    pub template: TemplateId,
    /// Current state.
    pub state: BuildState,
    /// Time of the request.
    pub created_at: Timestamp,
    /// The other fields.
    pub spec: BuildSpec,
}

impl BuildRecord {
    /// Tags that mean the build once it is published: its own, and `latest` unless its request keeps that.
    pub fn published_tags<'a>(&self, tags: &'a [String]) -> impl Iterator<Item = &'a str> + use<'a> {
        let latest = (!self.spec.request.keep_latest).then_some(LATEST);
        tags.iter().map(String::as_str).chain(latest)
    }
}

/// The fields that decide whether a build is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildHead {
    /// The build's id.
    pub id: BuildId,
    /// The build's template.
    pub template: TemplateId,
    /// Current state.
    pub state: BuildState,
    /// The machine of a finished build.
    pub snapshot: Option<SnapshotId>,
    /// The machine with the files of a build that can be repeated.
    pub files: Option<SnapshotId>,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildSpec {
    /// Name of its template.
    pub name: String,
    /// The requested value.
    pub request: CreateBuild,
    /// Build instructions, from the start of the build until its end.
    pub start: Option<StartBuild>,
    /// Build instructions of a finished build, to repeat it.
    pub recipe: Option<StartBuild>,
    /// What a repetition needs and was not kept, such as `build files`.
    pub lost_inputs: Vec<String>,
    /// Snapshot of the machine with the files of a build that can be repeated.
    pub files: Option<SnapshotId>,
    /// The build that this one repeats.
    pub rebuild_of: Option<BuildId>,
    /// What a rebuild changed.
    pub changes: Option<TemplateChanges>,
    /// Time at which files were last added. They are in the build's context machine.
    pub files_at: Option<Timestamp>,
    /// End time.
    pub ended_at: Option<Timestamp>,
    /// Current phase.
    pub phase: String,
    /// Reason for the failure.
    pub error: Option<String>,
    /// Details of the failure.
    pub failure: Option<BuildFailure>,
    /// Steps in all.
    pub steps: Option<usize>,
    /// Steps reused from an earlier build.
    pub cached_steps: Option<usize>,
    /// Base of the build.
    pub base: String,
    /// Digest of the base image, or build of the base template.
    pub base_digest: Option<String>,
    /// The machine that it made.
    pub snapshot: Option<SnapshotId>,
    /// The snapshot is a client's own, published as a template: never deleted here.
    pub published: bool,
    /// Bytes of that.
    pub size_bytes: u64,
    /// Virtual processors of its sandboxes.
    pub cpu: u32,
    /// Memory of its sandboxes.
    pub memory_mb: u32,
    /// Settings for commands in its sandboxes.
    pub config: ImageConfig,
    /// Command that runs in its sandboxes from the start.
    pub start_command: Option<String>,
    /// Check that the command is ready.
    pub ready: Option<ReadyCheck>,
}

/// A name for a version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRecord {
    /// The template.
    pub template: TemplateId,
    /// The name.
    pub tag: String,
    /// The build it means.
    pub build: BuildId,
    /// When it was set.
    pub created_at: Timestamp,
}

/// The result of a build step, found again by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerRecord {
    /// Tenant: layers are never shared between workspaces.
    pub workspace: WorkspaceId,
    /// Hash of everything that the step depends on.
    pub key: String,
    /// The machine after the step.
    pub snapshot: SnapshotId,
    /// When it was last used.
    pub used_at: Timestamp,
    /// Process settings of an image, for its first layer.
    pub config: ImageConfig,
}

/// Templates.
#[async_trait]
pub trait TemplateStore: Send + Sync {
    /// The template of that name; it is added if it does not exist. Quota:
    /// `TEMPLATES_PER_WORKSPACE_MAX`.
    async fn ensure_template(&self, record: &TemplateRecord) -> Result<TemplateRecord>;
    /// The template of that name.
    async fn template(&self, workspace: &WorkspaceId, name: &str) -> Result<Option<TemplateRecord>>;
    /// Templates of a workspace, by name.
    async fn templates(&self, workspace: &WorkspaceId) -> Result<Vec<TemplateRecord>>;
    /// Writes the mutable fields.
    async fn update_template(&self, record: &TemplateRecord) -> Result<()>;
    /// Removes a template with its tags, builds and logs. Succeeds if it does not exist.
    async fn delete_template(&self, id: &TemplateId) -> Result<()>;
    /// Removes the templates of a workspace with their tags, builds and logs, and its layers.
    async fn delete_templates(&self, workspace: &WorkspaceId) -> Result<()>;

    /// Adds a build. Quota: `TEMPLATE_BUILDS_IN_PROGRESS_MAX`.
    async fn insert_build(&self, record: &BuildRecord) -> Result<()>;
    /// Returns the build of a workspace.
    async fn build(&self, workspace: &WorkspaceId, id: &BuildId) -> Result<BuildRecord>;
    /// The newest `TEMPLATE_BUILDS_LISTED_MAX` of a workspace, newest first.
    async fn builds(&self, workspace: &WorkspaceId) -> Result<Vec<BuildRecord>>;
    /// All builds of a workspace, newest first, without their inputs.
    async fn build_heads(&self, workspace: &WorkspaceId) -> Result<Vec<BuildHead>>;
    /// The name of the template that a snapshot is a version of.
    async fn template_of_snapshot(
        &self,
        workspace: &WorkspaceId,
        snapshot: &SnapshotId,
    ) -> Result<Option<String>>;
    /// Builds in progress of all workspaces, oldest first.
    async fn builds_in_progress(&self) -> Result<Vec<BuildRecord>>;
    /// Writes a build that is in state `from`; returns `false` without writing if it is in another state.
    async fn put_build(&self, record: &BuildRecord, from: BuildState) -> Result<bool>;
    /// The same, and points its tags to it, and `latest` unless its request keeps that. A rebuild gets only
    /// those that still mean the build that it repeats. Quota: `TAGS_PER_TEMPLATE_MAX`.
    async fn publish_build(&self, record: &BuildRecord, from: BuildState, tags: &[String]) -> Result<bool>;
    /// Removes a build with its log and its tags.
    async fn delete_build(&self, id: &BuildId) -> Result<()>;

    /// The build that a tag means.
    async fn tagged_build(&self, template: &TemplateId, tag: &str) -> Result<Option<BuildRecord>>;
    /// The tags of a template, by name.
    async fn tags(&self, template: &TemplateId) -> Result<Vec<TagRecord>>;
    /// Sets tags. Quota: `TAGS_PER_TEMPLATE_MAX`.
    async fn set_tags(&self, tags: &[TagRecord]) -> Result<()>;
    /// Removes a tag; false if there was none.
    async fn delete_tag(&self, template: &TemplateId, tag: &str) -> Result<bool>;

    /// The lines of a build's log from `first` on.
    async fn build_log(&self, id: &BuildId, first: u64, limit: u32) -> Result<Vec<String>>;
    /// Number of lines in a build's log.
    async fn count_build_log(&self, id: &BuildId) -> Result<u64>;
    /// Appends lines, numbered from `first`.
    async fn append_build_log(&self, id: &BuildId, first: u64, lines: &[String]) -> Result<()>;

    /// The layer of that key.
    async fn layer(&self, workspace: &WorkspaceId, key: &str) -> Result<Option<LayerRecord>>;
    /// Adds or replaces a layer.
    async fn put_layer(&self, layer: &LayerRecord) -> Result<()>;
    /// Layers of a workspace, most recently used first.
    async fn layers(&self, workspace: &WorkspaceId) -> Result<Vec<LayerRecord>>;
    /// Removes a layer.
    async fn delete_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<()>;
    /// Workspaces that have templates or layers.
    async fn template_workspaces(&self) -> Result<Vec<WorkspaceId>>;
}
