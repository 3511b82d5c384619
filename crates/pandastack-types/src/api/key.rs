//! API keys: roles, and what is shown of a key.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::WorkspaceId;

/// What a key may do in its workspace; each role includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// List and describe resources. Reads no files, output or logs of programs, and wakes nothing.
    Viewer,
    /// Create, use and delete sandboxes, apps, databases and everything else in the workspace.
    #[default]
    Developer,
    /// Manage keys and settings of the workspace.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a role; use `viewer`, `developer` or `owner`"))
    }
}

/// The earlier names of roles, which older clients send and read.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Scope::Read),
            "sandboxes" => Ok(Scope::Sandboxes),
            "admin" => Ok(Scope::Admin),
            _ => Err(format!("{text:?} is not a scope; use `read`, `sandboxes` or `admin`")),
        }
    }
}

/// `POST /v1/me/tokens` and `POST /v1/workspaces/{id}/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What it may do in its workspace; `developer` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The earlier name of `role`; `role` wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Whether it may also manage the installation: workspaces, their quotas, and hosts. Such a key
    /// is an owner's key of workspace `default`, and only an operator's key creates one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
    /// Days until it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_days: Option<u32>,
    /// When it stops working, instead of `expires_in_days`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Addresses and networks that it may be used from, such as `10.1.0.0/16`; everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
}

/// `POST /v1/me/tokens/{prefix}/rotate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RotateToken {
    /// How long the old secret keeps working; 24 hours when absent, 0 for not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_seconds: Option<u64>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Public part.
    pub prefix: String,
    /// Name for people.
    pub label: String,
    /// What it may do in its workspace.
    #[serde(default)]
    pub role: Role,
    /// The earlier name of `role`.
    #[serde(default)]
    pub scope: Scope,
    /// Whether it may also manage the installation.
    #[serde(default)]
    pub operator: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
    /// Addresses and networks that it may be used from; everywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
}

/// A new key; the only time its secret is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// `pds_...`.
    pub token: String,
    /// The rest.
    #[serde(flatten)]
    pub info: TokenInfo,
    /// After a rotation: the prefix of the key that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// After a rotation: when the replaced key stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub replaced_until: Option<Timestamp>,
}

/// `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Tenant of the key.
    pub workspace: WorkspaceId,
    /// Public part of the key.
    pub token_prefix: String,
    /// Name of the key.
    pub token_label: String,
    /// What the key may do in its workspace.
    #[serde(default)]
    pub token_role: Role,
    /// The earlier name of `token_role`.
    #[serde(default)]
    pub token_scope: Scope,
    /// Whether the key may also manage the installation.
    #[serde(default)]
    pub operator: bool,
    /// Always `api_key`.
    pub auth_method: String,
}
