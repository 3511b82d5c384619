//! Variables of an app.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Deployments that see a variable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvScope {
    /// All deployments.
    #[default]
    All,
    /// Deployments of the app itself.
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

/// Stage in which a variable is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvStage {
    /// In builds and at run time.
    #[default]
    All,
    /// Only while dependencies are installed and the app is built.
    Build,
    /// Only at run time.
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

    /// Returns whether a variable of this stage is set in `stage`.
    pub fn is_in(self, stage: Self) -> bool {
        self == Self::All || self == stage
    }
}

/// An environment variable of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnv {
    /// Variable name.
    pub key: String,
    /// Variable value; masked for a secret.
    pub value: String,
    /// Whether the variable is secret.
    pub secret: bool,
    /// Deployments that see the variable.
    pub scope: EnvScope,
    /// Stage in which the variable is set.
    #[serde(default)]
    pub stage: EnvStage,
    /// Time of the last change.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// Response of `GET /v1/apps/{id}/env`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvList {
    /// Variables, sorted by name.
    pub env: Vec<AppEnv>,
}

/// Request body of `PUT /v1/apps/{id}/env/{key}`. Omitted properties of an existing variable are kept. A new
/// variable is not secret and has scope and stage `all` by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAppEnv {
    /// Variable value.
    #[serde(default)]
    pub value: String,
    /// Whether to mask the value in all responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Deployments that see the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// Stage in which the variable is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<EnvStage>,
}

/// Response of `PUT /v1/apps/{id}/env/{key}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvSet {
    /// Variable name.
    pub key: String,
    /// Whether the variable is secret.
    pub secret: bool,
    /// Deployments that see the variable.
    pub scope: EnvScope,
    /// Stage in which the variable is set.
    #[serde(default)]
    pub stage: EnvStage,
    /// Advice about the variable, for example that only the build reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Request body of `POST /v1/apps/{id}/env/import`. Omitted properties of existing variables are kept. New
/// variables are not secret and have scope and stage `all` by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImportAppEnv {
    /// Content of a `.env` file: `KEY=value` lines with optional quotes (also multi-line), comments and
    /// `export`.
    #[serde(default)]
    pub dotenv: String,
    /// Whether all variables are secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Deployments that see the variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// Stage in which the variables are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<EnvStage>,
}

/// Response of `POST /v1/apps/{id}/env/import`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppEnvImported {
    /// Number of variables that this call set.
    pub imported: usize,
    /// Number of variables after this call.
    pub total: usize,
}
