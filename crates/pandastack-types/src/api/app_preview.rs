//! Previews of apps: deployments of pull requests, each at its own address.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppStatus, Deployment};
use crate::{AppId, SandboxId};

/// Pull requests that get a preview.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AppPreviews {
    /// None.
    Off,
    /// Pull requests from branches of the repository itself.
    #[default]
    Branches,
    /// Also pull requests from forks, whose code sees no secrets.
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

/// The preview of a pull request. It is also an app: use its name or ID for logs, deployments and commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppPreview {
    /// App ID of the preview.
    pub id: AppId,
    /// App that the preview belongs to.
    pub app_id: AppId,
    /// App name of the preview, `pr-<number>-<app>`, which is also the first label of its host name.
    pub name: String,
    /// Pull request number.
    pub number: u32,
    /// Pull request title.
    pub title: String,
    /// Source branch of the pull request.
    pub branch: String,
    /// Whether the source branch is in a fork. Previews of forks see no secrets.
    pub fork: bool,
    /// URL of the pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_url: Option<String>,
    /// Latest known commit.
    pub git_commit: String,
    /// Current status.
    pub status: AppStatus,
    /// URL of the preview, as the caller can reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Sandbox of the first instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Latest deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Deployment>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change or deployment.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}
