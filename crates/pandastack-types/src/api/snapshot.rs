//! Snapshots, forks and promotion.
//!
//! Their requests refuse fields that they do not know: what a mistyped name leaves out means something else, such as the newest
//! snapshot, and cannot be taken back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Metadata, Sandbox};
use crate::{HostId, SandboxId, SnapshotId, TreeId, WorkspaceId};

/// `POST /v1/sandboxes/{id}/snapshots`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Name for people: one line of at most 256 bytes. Several snapshots may have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Delete it after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Afterwards, of the sandbox's snapshots without a name keep only this many, the newest. Checkpoints are counted
    /// apart; named snapshots stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
}

/// Who took a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// A client.
    #[default]
    Manual,
    /// The platform, because the sandbox's lifecycle has `checkpoints`. Deleted with its sandbox.
    Checkpoint,
    /// The platform, for a service such as an app. Neither listed nor deleted by clients.
    Service,
}

/// `POST /v1/sandboxes/{id}/rollback`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// A snapshot of this sandbox; its newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
}

/// `GET /v1/sandboxes/{id}/lineage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lineage {
    /// The sandbox.
    pub id: SandboxId,
    /// Sandbox it was forked from, also when that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SandboxId>,
    /// The fork it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_id: Option<TreeId>,
    /// From its parent up to the first of the line, also those that are gone; at most `ANCESTORS_MAX`.
    pub ancestors: Vec<SandboxId>,
    /// Its children that exist, oldest first.
    pub children: Vec<Sandbox>,
    /// Other children of the same fork that exist, oldest first.
    pub siblings: Vec<Sandbox>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Sandbox it shows.
    pub sandbox_id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Template of that sandbox.
    pub template: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels.
    pub metadata: Metadata,
    /// Bytes written for it.
    pub size_bytes: u64,
    /// How long the sandbox stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Host that holds it.
    pub host: HostId,
    /// Who took it.
    #[serde(default)]
    pub kind: SnapshotKind,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it is deleted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Newest first.
    pub snapshots: Vec<Snapshot>,
}

/// `POST /v1/sandboxes/{id}/fork`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// Labels of the child, over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// `POST /v1/sandboxes/{id}/fork-tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkTree {
    /// How many children.
    pub count: u32,
    /// Labels of every child, over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Children of one fork-tree call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkTreeResult {
    /// The ones that were made, in order.
    pub children: Vec<Sandbox>,
    /// Names the call; also in each child's `metadata.fork_tree_id`.
    pub tree_id: TreeId,
    /// The parent.
    pub parent_id: SandboxId,
    /// How long the parent stood still.
    pub pause_ms: f64,
    /// The ones that were not made.
    pub errors: Vec<ForkError>,
}

/// One child that was not made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkError {
    /// Its place in the order.
    pub index: u32,
    /// Why.
    pub err: String,
}

/// `POST /v1/sandboxes/{id}/promote`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// Delete the other children of the tree, apart from those that were promoted before.
    #[serde(default)]
    pub cleanup_siblings: bool,
    /// The tree; from the sandbox's metadata when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_id: Option<TreeId>,
}

/// Answer to a promote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// The sandbox that stays.
    pub winner: SandboxId,
    /// The tree.
    pub tree_id: TreeId,
    /// Siblings that were deleted.
    pub deleted: Vec<SandboxId>,
    /// Siblings that were not, and why.
    pub failures: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::api::Hibernate;

    #[track_caller]
    fn check<T: DeserializeOwned>(body: &str, unknown: Option<&str>) {
        let refusal = serde_json::from_str::<T>(body).err().map(|error| error.to_string());
        match unknown {
            Some(field) => {
                let wanted = format!("unknown field `{field}`");
                assert!(
                    refusal.as_ref().is_some_and(|refusal| refusal.contains(&wanted)),
                    "{body}: {refusal:?}"
                );
            }
            None => assert_eq!(refusal, None, "{body}"),
        }
    }

    /// What published clients send is taken, what is mistyped is named.
    #[test]
    fn unknown_fields_are_refused() {
        check::<Rollback>("{}", None);
        check::<Rollback>(r#"{"snapshot_id": null}"#, None);
        check::<Rollback>(r#"{"snapshotid": "x"}"#, Some("snapshotid"));
        check::<Hibernate>("{}", None);
        check::<Hibernate>(r#"{"keeps": "disk"}"#, Some("keeps"));
        check::<CreateSnapshot>(r#"{"name": "n", "metadata": {}, "ttl_seconds": 1, "keep_last": 1}"#, None);
        check::<CreateSnapshot>(r#"{"ttl": 1}"#, Some("ttl"));
        check::<ForkSandbox>(r#"{"metadata": {"k": "v"}}"#, None);
        check::<ForkSandbox>(r#"{"count": 3}"#, Some("count"));
        check::<ForkTree>(r#"{"count": 3, "metadata": {"explore": "1"}}"#, None);
        check::<ForkTree>(r#"{"count": 3, "n": 3}"#, Some("n"));
        check::<Promote>(r#"{"cleanup_siblings": true, "tree_id": null}"#, None);
        check::<Promote>(r#"{"cleanup": true}"#, Some("cleanup"));
    }
}
