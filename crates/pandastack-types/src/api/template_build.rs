//! Inputs of a template build: a Dockerfile, steps, and what they need.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request body of `POST /v1/templates/builds/{id}/start`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBuild {
    /// Content of the Dockerfile.
    pub dockerfile: String,
    /// Steps that follow the Dockerfile, in the stage that is built.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<BuildStep>,
    /// Values of `ARG` instructions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Stage to build. Default: the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Build without the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Command to start after the last step. It runs in every sandbox from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// Check that the start command is ready. Without a start command, the build only waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
    /// Credentials for the registries of images in `FROM`. They are kept sealed until the build ends, and are
    /// in no layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<RegistryCredentials>,
    /// Registries to reach over HTTP instead of HTTPS, such as `registry.local:5000`. Credentials for them
    /// and their images can be read in transit, but images cannot be changed under a digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plain_http: Vec<String>,
    /// Secrets for `RUN --mount=type=secret`. They are kept sealed until the build ends, and are in no layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<BuildSecret>,
    /// If a step fails, keep its machine as a snapshot for one hour. The build's `failure` names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub debug: bool,
}

/// Credentials for a container registry.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryCredentials {
    /// Host name of the registry, with its port: `ghcr.io`; `docker.io` for Docker Hub.
    pub registry: String,
    /// User name.
    pub username: String,
    /// Password or access token.
    pub password: String,
    /// AWS region of Amazon ECR, such as `eu-central-1`. Then the user name and the password are an access
    /// key and its secret, which the build exchanges for a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws_region: Option<String>,
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryCredentials").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// A secret of a build.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSecret {
    /// Name by which `RUN --mount=type=secret,id=NAME` asks for it.
    pub id: String,
    /// Content of the file that the step finds.
    pub value: String,
}

impl fmt::Debug for BuildSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A build step that is not text of a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStep {
    /// Run a command with the shell of the stage.
    Run(BuildRun),
    /// Copy build files.
    Copy(BuildCopy),
    /// Set environment variables. `$NAME` in a value is replaced; `\$` is a dollar sign.
    Env(BTreeMap<String, String>),
    /// Set the working directory, and create it. `$NAME` is replaced, as in `env`.
    Workdir(String),
    /// Set the user of the next steps and of sandboxes.
    User(String),
}

/// A build step that runs a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildRun {
    /// Command for the shell.
    pub command: String,
    /// User of this command only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Secrets that the command finds in `/run/secrets`, by their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Run this step and the next ones without the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
}

/// A build step that copies build files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildCopy {
    /// Files, directories or patterns, relative to the root of the build files.
    pub sources: Vec<String>,
    /// Destination. With a slash at its end, or with several sources, it is a directory.
    pub dest: String,
    /// Owner: `user` or `user:group`. Default: root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Octal permissions of everything that is copied. Default: those of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Copy a source that is a symbolic link as a link, instead of what it leads to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_links: bool,
    /// Run this step and the next ones without the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
}

/// Check that a start command is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadyCheck {
    /// A process listens on this TCP port.
    Port(u16),
    /// This URL, requested from inside the machine, returns a status below 400.
    Url(String),
    /// This file exists.
    File(String),
    /// A process with this name runs. Only the first 15 bytes are compared, because Linux truncates process
    /// names.
    Process(String),
    /// This command exits with 0.
    Command(String),
}
