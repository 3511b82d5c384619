//! Databases attached to apps.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EnvScope;
use crate::DatabaseId;

/// `PUT /v1/apps/{id}/databases/{database}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttachDatabase {
    /// Variable that holds its connection string; `DATABASE_URL` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Which deployments reach it; `production` when absent. Previews of forks never do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<EnvScope>,
    /// Whether builds reach it too, for migrations and pages made ahead.
    #[serde(default)]
    pub build: bool,
}

/// A database that is attached to an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppDatabase {
    /// The database.
    pub database: DatabaseId,
    /// Variable that holds its connection string.
    pub env: String,
    /// Which deployments reach it.
    pub scope: EnvScope,
    /// Whether builds reach it too.
    pub build: bool,
}
