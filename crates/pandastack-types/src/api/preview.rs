//! Previews: who may open a sandbox's ports, and with what.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SandboxId;
use crate::preview::Visibility;

/// `GET /v1/sandboxes/{id}/preview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// Who may open the sandbox's ports.
    pub visibility: Visibility,
    /// What opens a private one, in the header `x-pandastack-preview-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Body of `PUT /v1/sandboxes/{id}/preview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetPreview {
    /// Who may open the sandbox's ports.
    pub visibility: Visibility,
}

/// Body of `POST /v1/sandboxes/{id}/preview-token`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignPreview {
    /// The port.
    pub port: u16,
    /// How long the URL works; an hour unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

/// A URL that opens a private preview for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedPreview {
    /// The whole URL.
    pub url: String,
    /// Its secret part, to be sent in a header or put into another URL of the same port.
    pub token: String,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The port.
    pub port: u16,
    /// When it stops working.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
