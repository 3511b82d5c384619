//! Keys, hosts and the server itself.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HostId, WorkspaceId};

/// `POST /v1/me/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Days until it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_days: Option<u32>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Public part.
    pub prefix: String,
    /// Name for people.
    pub label: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// A new key; the only time its secret is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// `pds_...`.
    pub token: String,
    /// The rest.
    #[serde(flatten)]
    pub info: TokenInfo,
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
    /// Always `api_key`.
    pub auth_method: String,
}

/// A host, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// Whether its agent answers.
    pub reachable: bool,
    /// Engine of new sandboxes.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Sandboxes on it.
    pub sandboxes: u64,
    /// Memory not promised to anyone.
    pub memory_free_mb: u64,
    /// Free space of its store.
    pub disk_free_bytes: u64,
    /// Version of its agent.
    pub version: String,
    /// When it was last heard.
    #[schema(value_type = String, format = DateTime)]
    pub last_seen_at: Timestamp,
}

/// `GET /version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Of the server.
    pub version: String,
    /// Of the API.
    pub api: String,
}
