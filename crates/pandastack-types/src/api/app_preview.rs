//! Previews of apps: what a pull request would make of one, at an address of its own.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppStatus, Deployment};
use crate::{AppId, SandboxId};

/// Which pull requests of an app's repository get a preview.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AppPreviews {
    /// None.
    Off,
    /// Those from branches of the repository itself.
    #[default]
    Branches,
    /// Also those from forks: code of anybody, which sees no secret.
    All,
}

impl AppPreviews {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Branches => "branches",
            Self::All => "all",
        }
    }
}

/// The preview of a pull request. It is an app too: its name and id serve for logs, deployments and commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppPreview {
    /// Its own id as an app.
    pub id: AppId,
    /// The app that it is a preview of.
    pub app_id: AppId,
    /// First label of its address: `pr-<number>-<app>`.
    pub name: String,
    /// Number of the pull request.
    pub number: u32,
    /// Title of the pull request.
    pub title: String,
    /// Branch that it would merge.
    pub branch: String,
    /// Whether that branch is of another repository. Then the preview sees no secret.
    pub fork: bool,
    /// Address of the pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_url: Option<String>,
    /// Newest commit that was told of.
    pub git_commit: String,
    /// Where it stands.
    pub status: AppStatus,
    /// Its address, as the caller would reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The machine that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Its newest deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Deployment>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last changed or deployed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}
