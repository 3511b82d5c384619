//! Actions of schedules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ExecRequest;
use crate::SandboxId;

/// Action of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// An HTTP request. Responses other than 2xx are failures; redirects are not followed.
    Http(HttpTarget),
    /// A command in an existing sandbox, which is woken, or in a temporary one.
    Command(CommandTarget),
    /// Wake or hibernate a sandbox.
    Sandbox(SandboxTarget),
    /// An HTTP request to an app, which is woken. Responses other than 2xx are failures.
    App(AppTarget),
    /// A function call.
    Function(FunctionTarget),
    /// An SQL statement on a database.
    Sql(SqlTarget),
    /// A rebuild of a template. The run ends with the build, and fails if the build fails.
    Template(TemplateTarget),
}

/// HTTP request of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HttpTarget {
    /// URL with scheme `http` or `https`.
    pub url: String,
    /// HTTP method. Default: `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Request headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Command of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandTarget {
    /// Sandbox to run the command in (ID, name, or the start of an ID). Default: a new one from `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Template of the new sandbox. Default: `base`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Command to run. Its timeout is the one of the schedule.
    #[serde(flatten)]
    pub exec: ExecRequest,
}

/// Sandbox to wake or hibernate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxTarget {
    /// Sandbox ID, name, or the start of an ID. The schedule keeps the ID.
    pub sandbox_id: SandboxId,
    /// Action to perform.
    pub action: SandboxAction,
}

/// Action of a schedule on a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxAction {
    /// Wake it.
    Wake,
    /// Put it to sleep on disk.
    Hibernate,
}

/// HTTP request of a schedule to an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppTarget {
    /// App ID or name.
    pub app_id: String,
    /// Path with optional query. Default: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// HTTP method. Default: `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Request headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Function call of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionTarget {
    /// Function ID.
    pub function_id: String,
    /// Event for the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<serde_json::Value>,
}

/// SQL statement of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SqlTarget {
    /// Database ID, name, or the start of an ID. The schedule keeps the ID.
    pub database_id: String,
    /// One SQL statement to run.
    pub sql: String,
}

/// Template that a schedule rebuilds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateTarget {
    /// Template of the workspace, as `NAME` or `NAME:TAG`.
    pub template: String,
}
