//! GitHub repositories with previews, and the variables of those previews.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Numeric ID of a repository on GitHub. It stays the same when the repository is renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "i64", into = "i64")]
#[schema(value_type = i64, minimum = 1)]
pub struct GithubRepoId(i64);

/// A value that is not a GitHub repository ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a GitHub repository id; use a positive integer")]
pub struct GithubRepoIdError(String);

/// Characters of a text that is no id which are shown.
const SHOWN_CHARS_MAX: usize = 40;

impl TryFrom<i64> for GithubRepoId {
    type Error = GithubRepoIdError;
    fn try_from(number: i64) -> Result<Self, GithubRepoIdError> {
        if number > 0 { Ok(Self(number)) } else { Err(GithubRepoIdError(number.to_string())) }
    }
}

impl FromStr for GithubRepoId {
    type Err = GithubRepoIdError;
    fn from_str(text: &str) -> Result<Self, GithubRepoIdError> {
        // Nothing but digits: a number's parser also takes a sign.
        let number =
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok()).flatten();
        let unknown = || GithubRepoIdError(text.chars().take(SHOWN_CHARS_MAX).collect());
        number.and_then(|number| Self::try_from(number).ok()).ok_or_else(unknown)
    }
}

impl From<GithubRepoId> for i64 {
    fn from(id: GithubRepoId) -> Self {
        id.0
    }
}

impl fmt::Display for GithubRepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Request body of `POST /v1/preview-repos`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnablePreviewRepo {
    /// Repository ID.
    pub github_repo_id: GithubRepoId,
    /// Repository as `owner/name`. It identifies apps whose repository ID is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_full_name: Option<String>,
}

/// A repository whose pull requests get previews.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewRepo {
    /// Repository ID.
    pub github_repo_id: GithubRepoId,
    /// Repository as `owner/name`; empty if unknown.
    pub repo_full_name: String,
    /// Whether previews are enabled.
    pub enabled: bool,
}

/// Response of `GET /v1/preview-repos`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewRepoList {
    /// Repositories, oldest first.
    pub repos: Vec<PreviewRepo>,
}

/// Request body of `PUT /v1/repos/{repo}/preview-env/{key}`. Without `secret`, an existing variable keeps its
/// secrecy, and a new one is not secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetPreviewEnv {
    /// Value of the variable.
    #[serde(default)]
    pub value: String,
    /// Whether to mask the value in all responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
}

/// Request body of `POST /v1/repos/{repo}/preview-env/import`. Without `secret`, existing variables keep
/// their secrecy, and new ones are not secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportPreviewEnv {
    /// Content of a `.env` file: `KEY=value` lines with optional quotes (also multi-line), comments and
    /// `export`.
    #[serde(default)]
    pub dotenv: String,
    /// Whether all variables are secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_ids_are_positive_integers() {
        for (text, accepted) in [
            ("1", true),
            ("9223372036854775807", true),
            ("9223372036854775808", false),
            ("0", false),
            ("-1", false),
            ("+1", false),
            ("", false),
            ("1.5", false),
            ("a/b", false),
        ] {
            assert_eq!(text.parse::<GithubRepoId>().is_ok(), accepted, "{text:?}");
        }
        assert_eq!(serde_json::from_str::<GithubRepoId>("7").unwrap().to_string(), "7");
        for bad in ["0", "-7", "\"7\"", "1.5", "null"] {
            assert!(serde_json::from_str::<GithubRepoId>(bad).is_err(), "{bad}");
        }
    }
}
