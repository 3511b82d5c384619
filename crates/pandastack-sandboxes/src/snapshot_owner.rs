//! Ownership of snapshots by services. Kept as a label of the snapshot, in the one text form of
//! [`Owner`].

use pandastack_store::SnapshotRecord;
use pandastack_types::Owner;
use pandastack_types::api::{Metadata, SnapshotKind};

/// The label.
const LABEL: &str = "owner";

/// The owner of a snapshot that a service took; `None` for those of users.
pub fn of(snapshot: &SnapshotRecord) -> Option<Owner> {
    let is_service = snapshot.spec.kind == SnapshotKind::Service;
    snapshot.spec.metadata.get(LABEL).filter(|_| is_service)?.parse().ok()
}

/// The label of a snapshot for `owner`.
pub(crate) fn label(owner: Option<&Owner>) -> Metadata {
    [(LABEL.to_owned(), owner.map(ToString::to_string).unwrap_or_default())].into()
}
