//! Databases attached to apps.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EnvScope;
use crate::DatabaseId;

/// Request body of `PUT /v1/apps/{id}/databases/{database}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttachDatabase {
    /// Environment variable for the connection string. Default: `DATABASE_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Deployments that can use the database. Previews of forks never can. Default: `production`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// Whether builds can use the database too, for migrations or static generation.
    #[serde(default)]
    pub build: bool,
}

/// A database that is attached to an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDatabase {
    /// Database ID.
    pub database: DatabaseId,
    /// Environment variable with the connection string.
    pub env: String,
    /// Deployments that can use the database.
    pub scope: EnvScope,
    /// Whether builds can use the database too.
    pub build: bool,
}
