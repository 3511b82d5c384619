//! Volumes: durable disks that outlive sandboxes.
//!
//! Must hold:
//! - **A hold is a row.** A sandbox has its volumes from the transaction that adds its row to the
//!   one that removes it, which is after its machine is confirmed gone. No lease can expire or be
//!   forgotten.
//! - **One writer, or readers.** The transaction that adds a sandbox refuses it otherwise, naming
//!   the holder of the volume. The host's lock on the image enforces the same a second time, for
//!   holders that this record does not know.
//! - **Generations only rise**, by one with every writer. The host refuses an older one.
//! - **Deleting is decided here and done on the host**: a volume on a host without a record is left
//!   alone, because a record can be restored from a backup and data cannot.
//!
//! ```text
//!   creating --host has it--> ready --delete--> deleting --host has it no longer--> (no row)
//! ```
//!
//! Out of scope: images, locks and space (agents), mounting (guests).

pub mod attach;
pub mod ops;
pub mod owned;
pub mod reconcile;

use pandastack_store::volumes::{VolumeHolderRecord, VolumeRecord};
use pandastack_types::api::{Volume, VolumeHolder};

use crate::hosts::Hosts;

const MIB: u64 = 1 << 20;

/// A volume as clients see it; `holders` may name other volumes too.
pub fn view(hosts: &Hosts, record: VolumeRecord, holders: &[VolumeHolderRecord]) -> Volume {
    let seen = hosts.volume(&record.host, &record.id);
    let size_bytes = record.spec.size_bytes.max(seen.as_ref().map_or(0, |seen| seen.size_bytes));
    let own = holders.iter().filter(|holder| holder.volume == record.id);
    let holder = |holder: &VolumeHolderRecord| VolumeHolder {
        sandbox_id: holder.sandbox.clone(),
        read_only: holder.read_only,
    };
    Volume {
        name: record.name,
        size_mb: size_bytes / MIB,
        size_bytes,
        used_bytes: seen.map_or(0, |seen| seen.used_bytes),
        generation: record.generation,
        host: record.host,
        protected: record.spec.protected,
        delete_with_sandbox: record.spec.delete_with_sandbox,
        snapshot: record.spec.snapshot,
        cloned_from: record.spec.cloned_from,
        attached_to: own.map(holder).collect(),
        created_at: record.created_at,
        id: record.id,
    }
}
