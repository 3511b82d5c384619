//! Templates and their builds.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::BuildId;

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
    /// `running`, `done` or `failed`.
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
}

/// Where a build stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// Under way.
    Running,
    /// Finished.
    Done,
    /// Failed.
    Failed,
}
