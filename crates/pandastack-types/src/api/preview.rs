//! Previews: visibility of a sandbox's ports, and credentials for them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SandboxId;
use crate::host_header::HostHeader;
use crate::preview::Visibility;

/// Response of `GET /v1/sandboxes/{id}/preview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// Visibility of the sandbox's ports.
    pub visibility: Visibility,
    /// `Host` header of requests to the ports, if it is not the name that the client used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_header: Option<HostHeader>,
    /// Token that opens the ports of a private sandbox, sent in the header `x-pandastack-preview-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Request body of `PUT /v1/sandboxes/{id}/preview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetPreview {
    /// Visibility of the sandbox's ports.
    pub visibility: Visibility,
}

/// Request body of `POST /v1/sandboxes/{id}/preview-token`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignPreview {
    /// Port number.
    pub port: u16,
    /// Seconds until the URL expires. Default: 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub ttl_seconds: Option<u64>,
}

/// A temporary URL for one port of a private sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedPreview {
    /// Complete URL.
    pub url: String,
    /// Token in the URL. It can also be sent in a header or used in other URLs of the same port.
    pub token: String,
    /// Sandbox ID.
    pub sandbox_id: SandboxId,
    /// Port number.
    pub port: u16,
    /// Time when the URL expires.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
