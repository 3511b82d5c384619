//! Frozen states with outdated components.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HostId, InvalidValue, WorkspaceId};

/// What happens when an outdated state is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutdatedAction {
    /// The state is used as it is.
    #[default]
    Keep,
    /// The call is refused.
    Refuse,
    /// The sandbox boots from its disk; its memory is dropped.
    ColdRestart,
}

impl OutdatedAction {
    /// The name in settings and responses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Refuse => "refuse",
            Self::ColdRestart => "cold-restart",
        }
    }
}

impl std::str::FromStr for OutdatedAction {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let all = [Self::Keep, Self::Refuse, Self::ColdRestart];
        let found = all.into_iter().find(|action| action.as_str() == text);
        let invalid = || format!("`{text}` is not one of keep, refuse and cold-restart");
        found.ok_or_else(|| InvalidValue::new(invalid()))
    }
}

/// A component of a frozen state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// The guest kernel.
    Kernel,
    /// The guest program, PID 1 of each machine.
    Guest,
    /// The engine that wrote the state.
    Engine,
}

impl Component {
    /// The component, as sentences name it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Kernel => "guest kernel",
            Self::Guest => "guest program",
            Self::Engine => "engine",
        }
    }
}

/// Kind of a frozen state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrozenKind {
    /// A sleeping sandbox.
    Sandbox,
    /// A snapshot.
    Snapshot,
    /// A version of a template, or a host's bake of one of the platform's templates.
    Template,
}

impl FrozenKind {
    /// The name in responses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Snapshot => "snapshot",
            Self::Template => "template",
        }
    }
}

/// An advisory of the operator that names a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdvisoryMatch {
    /// ID of the advisory.
    pub id: String,
    /// Severity, as the operator wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// Note of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An outdated component of a frozen state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutdatedComponent {
    /// The component.
    pub component: Component,
    /// Version in the state. Absent if it was written before versions were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Version of machines that the host boots now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Advisories that name the version in the state.
    pub advisories: Vec<AdvisoryMatch>,
}

/// A frozen state with outdated components.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutdatedState {
    /// Kind of state.
    pub kind: FrozenKind,
    /// ID of the sandbox or snapshot, or name of the template.
    pub id: String,
    /// Name, if it has one; of a version of a template the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Workspace. Absent for the platform's templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// Host that holds the state; shown with `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_id: Option<HostId>,
    /// Service that owns the state, such as `app:ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its outdated components.
    pub components: Vec<OutdatedComponent>,
    /// When the owner was told that an action follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub reported_at: Option<Timestamp>,
    /// Action when the state is used.
    pub action: OutdatedAction,
    /// Time from which the action is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub action_from: Option<Timestamp>,
    /// How to bring the state up to date.
    pub next_step: String,
}

/// Response of `GET /v1/outdated`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutdatedList {
    /// Outdated states.
    pub items: Vec<OutdatedState>,
    /// Whether every host answered. States on hosts that did not are missing.
    pub complete: bool,
}
