//! API keys and their roles.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{InvalidValue, WorkspaceId};

/// Permissions of an API key in its workspace. Each role includes the ones before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// List and describe resources. Cannot read files, output or logs, and wakes nothing.
    Viewer,
    /// Create, use and delete sandboxes, apps, databases and all other resources of the workspace.
    #[default]
    Developer,
    /// Manage API keys and settings of the workspace.
    Owner,
}

impl Role {
    const ALL: [Role; 3] = [Role::Viewer, Role::Developer, Role::Owner];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Developer => "developer",
            Role::Owner => "owner",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Role {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
        let invalid =
            || InvalidValue::new(format!("{text:?} is not a role; use `viewer`, `developer` or `owner`"));
        known.ok_or_else(invalid)
    }
}

/// Former names of roles, which older clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// `viewer`.
    Read,
    /// `developer`.
    #[default]
    Sandboxes,
    /// `owner`.
    Admin,
}

impl From<Scope> for Role {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Role::Viewer,
            Scope::Sandboxes => Role::Developer,
            Scope::Admin => Role::Owner,
        }
    }
}

impl From<Role> for Scope {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Scope::Read,
            Role::Developer => Scope::Sandboxes,
            Role::Owner => Scope::Admin,
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "read" => Ok(Scope::Read),
            "sandboxes" => Ok(Scope::Sandboxes),
            "admin" => Ok(Scope::Admin),
            _ => {
                let shown = format!("{text:?} is not a scope; use `read`, `sandboxes` or `admin`");
                Err(InvalidValue::new(shown))
            }
        }
    }
}

/// Request body of `POST /v1/me/tokens` and `POST /v1/workspaces/{id}/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// Human-readable label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Role of the key in its workspace. Default: `developer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Former name of `role`; ignored if `role` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Whether the key can also manage the installation: workspaces, quotas and hosts. An operator key is an
    /// owner key of workspace `default`. Only an operator key can create another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
    /// Days until the key expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub expires_in_days: Option<u32>,
    /// Time when the key expires, instead of `expires_in_days`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Addresses and networks that the key can be used from, such as `10.1.0.0/16`. Default: everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
}

/// Request body of `POST /v1/me/tokens/{prefix}/rotate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RotateToken {
    /// Seconds that the old secret keeps working; 0 to revoke it immediately. Default: 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_seconds: Option<u64>,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Public prefix of the key.
    pub prefix: String,
    /// Human-readable label.
    pub label: String,
    /// Role of the key in its workspace.
    #[serde(default)]
    pub role: Role,
    /// Former name of `role`.
    #[serde(default)]
    pub scope: Scope,
    /// Whether the key can also manage the installation.
    #[serde(default)]
    pub operator: bool,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time when the key expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Time of the last use, accurate to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
    /// Addresses and networks that the key can be used from; empty means everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
}

/// A new API key. The secret is shown only in this response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The key, including its secret: `pds_...`.
    pub token: String,
    /// Properties of the key.
    #[serde(flatten)]
    pub info: TokenInfo,
    /// Prefix of the key that this one replaces, after a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Time when the replaced key stops working, after a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub replaced_until: Option<Timestamp>,
}

/// Response of `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Workspace of the key.
    pub workspace: WorkspaceId,
    /// Public prefix of the key.
    pub token_prefix: String,
    /// Label of the key.
    pub token_label: String,
    /// Role of the key in its workspace.
    #[serde(default)]
    pub token_role: Role,
    /// Former name of `token_role`.
    #[serde(default)]
    pub token_scope: Scope,
    /// Whether the key can also manage the installation.
    #[serde(default)]
    pub operator: bool,
    /// `api_key`, or `session` for a member who signed in.
    pub auth_method: String,
}
