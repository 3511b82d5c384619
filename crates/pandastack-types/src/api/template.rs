//! Templates and their builds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BuildId, SnapshotId};

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Name to create from.
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Name for people.
    pub label: String,
    /// What is in it.
    pub description: String,
    /// Group in a catalogue.
    pub category: String,
    /// What it is built from.
    pub base: String,
    /// Programs it offers.
    pub tools: Vec<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Size of its files on a host that has it; 0 where none does.
    pub size_bytes: u64,
    /// Owned by the installation, not by a workspace.
    pub is_global: bool,
    /// `ready`, `baking`, `unbaked` or `failed`.
    pub status: TemplateStatus,
    /// Why the last bake failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Volume that each sandbox of it comes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<TemplateVolume>,
    /// What was built or published; absent for the templates that come with the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<TemplateVersion>,
}

/// The version of a template that its name means without a tag.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateVersion {
    /// The build that made it.
    pub build_id: String,
    /// When.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Timestamp>,
    /// Tags of the template, by name.
    pub tags: Vec<TemplateTag>,
    /// How its sandboxes run commands.
    pub config: ImageConfig,
}

/// A tag: a name for one version of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateTag {
    /// Its name.
    pub tag: String,
    /// The build it means.
    pub build_id: BuildId,
    /// When it was set.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// What a Dockerfile or an image says about the processes of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ImageConfig {
    /// Environment of every command.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// User of commands that name none, as `name`, `uid` or either with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Program of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Its arguments, or the program where there is no entrypoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// Shell of `RUN`, `CMD` and `ENTRYPOINT` in their shell form; `/bin/sh -c` when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Ports that it says it listens on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Paths that it wants as volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Signal that ends its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Command that tells whether it is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Vec<String>>,
}

/// `POST /v1/templates/builds`: begins a build. Without `start` it waits for files and `.../start`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBuild {
    /// Name of the template, which is created on first use.
    pub name: String,
    /// Tags that the version gets beside `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What is in it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Virtual processors of its sandboxes; those of what it is built from when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory of its sandboxes in MiB, a multiple of 128; that of what it is built from when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Start at once, without files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartBuild>,
}

/// `POST /v1/templates/builds/{id}/start`: what to build.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBuild {
    /// Text of the Dockerfile.
    pub dockerfile: String,
    /// Values of its `ARG`s.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Stage to build; the last when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Run every step, though an earlier build did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Started after the last step; sandboxes are created with it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// How to tell that it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
}

/// How to tell that a start command is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadyCheck {
    /// Something listens on this TCP port.
    Port(u16),
    /// This URL, fetched inside the machine, answers with a status below 400.
    Url(String),
    /// This file exists.
    File(String),
    /// A process of this name runs. Linux keeps 15 bytes of a name, so the rest does not count.
    Process(String),
    /// This command exits with 0.
    Command(String),
}

/// `POST /v1/templates/publish`: makes a snapshot a version of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishTemplate {
    /// The snapshot, which stays as it is.
    pub snapshot_id: SnapshotId,
    /// Name of the template, which is created on first use.
    pub name: String,
    /// Tags that the version gets beside `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What is in it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// `PUT /v1/templates/{name}/tags/{tag}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTemplateTag {
    /// The build it means from now on: a finished one of the same template.
    pub build_id: BuildId,
}

/// Where and why a build failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BuildFailure {
    /// Number of the step, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Line of the Dockerfile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The last lines that the command printed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
}

/// A volume that sandboxes of a template come with: a copy of what the template has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateVolume {
    /// Where it is mounted.
    pub path: String,
    /// Its size in MiB.
    pub size_mb: u64,
}

/// Whether a template can be created from at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateStatus {
    /// Not built on any host; the first create builds it.
    Unbaked,
    /// Being built.
    Baking,
    /// Creates restore it.
    Ready,
    /// The last build failed; the next create tries again.
    Failed,
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Its id.
    pub id: BuildId,
    /// Template.
    pub name: String,
    /// `queued`, `running`, `done` or `failed`.
    pub status: BuildStatus,
    /// What it does now.
    pub phase: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Lines logged so far; beyond a bound the oldest are gone.
    #[serde(default)]
    pub log: Vec<String>,
    /// Tags that the version gets, or has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Steps that came from an earlier build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_steps: Option<usize>,
    /// Steps in all, once they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<BuildFailure>,
}

/// Where a build stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// Waiting for its files or its turn.
    Queued,
    /// Under way.
    Running,
    /// Finished.
    Done,
    /// Failed.
    Failed,
}
