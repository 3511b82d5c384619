//! Typed ids. Every id may become a host name label, so all share one alphabet and one length.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Longest id: `<port>-<id>` must fit the 63 characters of a host name label.
pub const ID_CHARS_MAX: usize = 57;

/// Characters of a random id. Shorter and longer texts in a path may be names or beginnings of ids.
pub const ID_CHARS: usize = 36;

/// Text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind} id; use 1 to {ID_CHARS_MAX} lowercase letters, digits and `-`")]
pub struct IdError {
    kind: &'static str,
    text: String,
}

fn is_id(text: &str) -> bool {
    let label = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=ID_CHARS_MAX).contains(&text.len())
        && text.bytes().all(label)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
        #[serde(transparent)]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            /// A fresh random id.
            pub fn random() -> Self {
                Self(uuid::Uuid::new_v4().to_string())
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                if is_id(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(IdError { kind: $kind, text: text.chars().take(2 * ID_CHARS_MAX).collect() })
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

typed_id!(
    /// Sandbox ID. It is random and cannot be guessed, because it is also the credential of an unlisted
    /// preview.
    SandboxId,
    "sandbox"
);
typed_id!(
    /// Snapshot ID.
    SnapshotId,
    "snapshot"
);
typed_id!(
    /// ID of a host with an agent.
    HostId,
    "host"
);
typed_id!(
    /// ID of a template build.
    BuildId,
    "build"
);
typed_id!(
    /// ID of a template of a workspace. It stays the same when the name changes.
    TemplateId,
    "template"
);
typed_id!(
    /// ID of a fork-tree call, shared by its children.
    TreeId,
    "tree"
);
typed_id!(
    /// Function ID, which is part of the function URL.
    FunctionId,
    "function"
);
typed_id!(
    /// ID of a function call, shared by its attempts.
    RunId,
    "run"
);
typed_id!(
    /// Schedule ID.
    ScheduleId,
    "schedule"
);
typed_id!(
    /// ID of a schedule run.
    ScheduleRunId,
    "run"
);
typed_id!(
    /// App ID, which is also a label of its host name.
    AppId,
    "app"
);
typed_id!(
    /// ID of an app deployment.
    DeploymentId,
    "deployment"
);
typed_id!(
    /// Volume ID. It is never reused, unlike the name of a volume.
    VolumeId,
    "volume"
);
typed_id!(
    /// Database ID. With the suffix `-pooler`, it is still a valid host name label.
    DatabaseId,
    "database"
);
typed_id!(
    /// ID of a member of a workspace.
    MemberId,
    "member"
);
typed_id!(
    /// Webhook ID.
    WebhookId,
    "webhook"
);
typed_id!(
    /// Workspace ID.
    WorkspaceId,
    "workspace"
);

impl WorkspaceId {
    /// The workspace of a fresh installation.
    pub fn default_workspace() -> Self {
        Self("default".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, accepted: bool) {
        assert_eq!(text.parse::<SandboxId>().is_ok(), accepted, "{text:?}");
        let json = serde_json::to_string(text).unwrap();
        assert_eq!(serde_json::from_str::<SandboxId>(&json).is_ok(), accepted, "{json}");
    }

    #[test]
    fn ids_are_host_name_labels() {
        check("a", true);
        check("3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55", true);
        check(&"a".repeat(57), true);
        check(&"a".repeat(58), false);
        check("", false);
        check("-a", false);
        check("a-", false);
        check("A", false);
        check("a_b", false);
        check("../etc", false);
        check("é", false);
    }

    #[test]
    fn random_ids_are_valid_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        check(a.as_str(), true);
    }
}
