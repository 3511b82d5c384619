//! Snapshots, forks and promotion.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Metadata, Sandbox};
use crate::{HostId, SandboxId, SnapshotId, TreeId, WorkspaceId};

/// Request body of `POST /v1/sandboxes/{id}/snapshots`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Name, unique in the workspace: one line of at most 256 bytes. It can be used instead of the ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Take the name from the snapshot that has it, which stays without one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_name: bool,
    /// Metadata labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Seconds until the snapshot is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub ttl_seconds: Option<u64>,
    /// Number of the sandbox's unnamed snapshots to keep, newest first; older ones are deleted. Checkpoints
    /// are counted separately, and named snapshots are always kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
}

/// Origin of a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// Requested by a client.
    #[default]
    Manual,
    /// A checkpoint that the platform took. It is deleted with its sandbox.
    Checkpoint,
    /// Taken by the platform for a service such as an app. Clients can neither list nor delete it.
    Service,
}

/// Request body of `POST /v1/sandboxes/{id}/rollback`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Snapshot of this sandbox to restore. Default: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
}

/// Response of `GET /v1/sandboxes/{id}/lineage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lineage {
    /// Sandbox ID.
    pub id: SandboxId,
    /// Sandbox that this one was forked from, which may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SandboxId>,
    /// ID of the fork call that created this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_id: Option<TreeId>,
    /// Ancestors from the parent to the root, including deleted ones; at most 64.
    pub ancestors: Vec<SandboxId>,
    /// Existing children, oldest first.
    pub children: Vec<Sandbox>,
    /// Existing children of the same fork call, oldest first.
    pub siblings: Vec<Sandbox>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Snapshot ID.
    pub id: SnapshotId,
    /// Sandbox that the snapshot was taken of.
    pub sandbox_id: SandboxId,
    /// Workspace of the snapshot.
    pub workspace: WorkspaceId,
    /// Template of the sandbox.
    pub template: String,
    /// Name, unique in the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Metadata labels.
    pub metadata: Metadata,
    /// Bytes written for this snapshot.
    pub size_bytes: u64,
    /// Time that the sandbox was paused for the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Host that stores the snapshot.
    pub host: HostId,
    /// Origin of the snapshot.
    #[serde(default)]
    pub kind: SnapshotKind,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time when the snapshot is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// Response of `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Snapshots, newest first.
    pub snapshots: Vec<Snapshot>,
}

/// Request body of `POST /v1/sandboxes/{id}/fork`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// Number of forks. With it, the response is that of `fork-tree`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub count: Option<u32>,
    /// Metadata labels of the fork, merged over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Request body of `POST /v1/sandboxes/{id}/fork-tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkTree {
    /// Number of forks.
    #[schema(minimum = 1)]
    pub count: u32,
    /// Metadata labels of every fork, merged over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Response of `POST /v1/sandboxes/{id}/fork-tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkTreeResult {
    /// Forks that were created, in order.
    pub children: Vec<Sandbox>,
    /// ID of this call, also stored in each fork's `metadata.fork_tree_id`.
    pub tree_id: TreeId,
    /// Sandbox that was forked.
    pub parent_id: SandboxId,
    /// Time that the parent was paused.
    pub pause_ms: f64,
    /// Forks that could not be created.
    pub errors: Vec<ForkError>,
}

/// A fork that could not be created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkError {
    /// Index of the fork in the request.
    pub index: u32,
    /// Reason for the failure.
    pub err: String,
}

/// Request body of `POST /v1/sandboxes/{id}/promote`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// Delete the other forks of the tree, except those that were promoted before.
    #[serde(default)]
    pub cleanup_siblings: bool,
    /// ID of the fork call. Default: from the sandbox's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_id: Option<TreeId>,
}

/// Response of `POST /v1/sandboxes/{id}/promote`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// Sandbox that was promoted.
    pub winner: SandboxId,
    /// ID of the fork call.
    pub tree_id: TreeId,
    /// Siblings that were deleted.
    pub deleted: Vec<SandboxId>,
    /// Siblings that could not be deleted, with the reason.
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

    /// Fields of published clients are accepted; a misspelt field is named in the error.
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
        check::<ForkSandbox>(r#"{"count": 3}"#, None);
        check::<ForkSandbox>(r#"{"counts": 3}"#, Some("counts"));
        check::<ForkTree>(r#"{"count": 3, "metadata": {"explore": "1"}}"#, None);
        check::<ForkTree>(r#"{"count": 3, "n": 3}"#, Some("n"));
        check::<Promote>(r#"{"cleanup_siblings": true, "tree_id": null}"#, None);
        check::<Promote>(r#"{"cleanup": true}"#, Some("cleanup"));
    }
}
