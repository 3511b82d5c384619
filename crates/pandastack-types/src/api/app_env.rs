//! Variables of an app.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which deployments see a variable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvScope {
    /// All.
    #[default]
    All,
    /// Those of the app itself.
    Production,
    /// Previews of pull requests.
    Preview,
}

impl EnvScope {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Production => "production",
            Self::Preview => "preview",
        }
    }
}

/// When a variable is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvStage {
    /// In builds and in the machines that serve.
    #[default]
    All,
    /// While dependencies are installed and the app is built; never in a machine that serves.
    Build,
    /// In the machines that serve; never in a build.
    Run,
}

impl EnvStage {
    /// All of them.
    pub const EACH: [Self; 3] = [Self::All, Self::Build, Self::Run];

    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Build => "build",
            Self::Run => "run",
        }
    }

    /// Whether a variable of this stage is there in that one.
    pub fn is_in(self, stage: Self) -> bool {
        self == Self::All || self == stage
    }
}

/// A variable of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnv {
    /// Its name.
    pub key: String,
    /// Its value; masked for a secret.
    pub value: String,
    /// Whether it is a secret.
    pub secret: bool,
    /// Which deployments see it.
    pub scope: EnvScope,
    /// When it is there.
    #[serde(default)]
    pub stage: EnvStage,
    /// When it was set.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// `GET /v1/apps/{id}/env`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvList {
    /// By name.
    pub env: Vec<AppEnv>,
}

/// `PUT /v1/apps/{id}/env/{key}`. What is left out stays as it is for a variable that is there; a new one is plain, and seen by all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAppEnv {
    /// Its value.
    #[serde(default)]
    pub value: String,
    /// Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Which deployments see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// When it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<EnvStage>,
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvSet {
    /// Its name.
    pub key: String,
    /// Whether it is a secret.
    pub secret: bool,
    /// Which deployments see it.
    pub scope: EnvScope,
    /// When it is there.
    #[serde(default)]
    pub stage: EnvStage,
    /// What to know about it, such as that it is read by the build alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// `POST /v1/apps/{id}/env/import`. What is left out stays as it is for variables that are there; new ones are plain, and seen by all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImportAppEnv {
    /// Lines of `KEY=value`; quotes, over several lines too, comments and `export` are understood.
    #[serde(default)]
    pub dotenv: String,
    /// All are secrets, or none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Which deployments see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// When they are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<EnvStage>,
}

/// Answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvImported {
    /// Variables set by this call.
    pub imported: usize,
    /// Variables that there are now.
    pub total: usize,
}
