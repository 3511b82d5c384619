//! Sizes, validated requests and new records of databases. Pure.

use pandastack_store::SandboxRecord;
use pandastack_store::clock::now;
use pandastack_store::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
use pandastack_types::api::CreateSandbox;
use pandastack_types::limits::{DATABASE_IDLE_SECONDS, TTL_SECONDS_MAX};
use pandastack_types::preview::Visibility;
use pandastack_types::{DatabaseId, Error, Owner, Result, WorkspaceId};

/// Template that databases are forked from.
pub(crate) const TEMPLATE: &str = "postgres-16";
/// Mount path of the template's volume.
pub(crate) const DATA_PATH: &str = "/var/lib/postgresql";
/// Memory of a database that names none: the template's own.
const SIZE_DEFAULT_GIB: u32 = 1;
/// Sizes, in GiB of memory. Each is prepared once per host, at its first use.
const SIZES_GIB: [u32; 5] = [1, 2, 4, 8, 16];
/// Memory of a size is counted in these.
const MIB_PER_GIB: u32 = 1024;

/// Owner of a database's machine.
pub(crate) fn owner(id: &DatabaseId) -> Owner {
    Owner::Database(id.clone())
}

/// The database whose machine this is.
pub(crate) fn machine_of(machine: &SandboxRecord) -> Option<DatabaseId> {
    match &machine.owner {
        Some(Owner::Database(id)) => Some(id.clone()),
        _ => None,
    }
}

/// The record of a copy that is to be made.
pub(crate) fn new_copy(
    original: &DatabaseRecord,
    name: Option<String>,
    label: Option<String>,
) -> DatabaseRecord {
    let spec = DatabaseSpecRecord {
        name,
        label,
        protected: false,
        cloned_from: Some(original.id.clone()),
        revision: 0,
        reset_pending: false,
        step: None,
        ..original.spec.clone()
    };
    new_record(original.workspace.clone(), spec)
}

/// The record of a database that is to be made.
pub(crate) fn new_record(workspace: WorkspaceId, spec: DatabaseSpecRecord) -> DatabaseRecord {
    DatabaseRecord {
        id: fresh_id(),
        workspace,
        state: DatabaseState::Creating,
        sandbox: None,
        created_at: now(),
        drill: None,
        spec,
    }
}

/// An id that can be the first label of a host name. HTTP drivers connect to `<id>.<domain>`; an id
/// that begins like `<port>-<sandbox id>` would route them to a sandbox's port, and one of forty
/// random ids does.
fn fresh_id() -> DatabaseId {
    loop {
        let id = DatabaseId::random();
        if !begins_with_port(id.as_str()) {
            return id;
        }
    }
}

fn begins_with_port(label: &str) -> bool {
    label.split_once('-').is_some_and(|(first, _)| first.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The request for a record's machine.
pub(crate) fn machine_request(record: &DatabaseRecord) -> Result<CreateSandbox> {
    let size = size_gib(Some(&record.spec.size), None)?;
    Ok(CreateSandbox {
        template: Some(TEMPLATE.to_owned()),
        cpu: record.spec.cpu,
        memory_mb: (size != SIZE_DEFAULT_GIB).then_some(size * MIB_PER_GIB),
        persistent: Some(true),
        idle_timeout_seconds: Some(idle_seconds(record.spec.always_on)),
        visibility: Some(Visibility::Off),
        ..CreateSandbox::default()
    })
}

/// Idle timeout of a database's machine. A machine that never sleeps has the longest possible
/// timeout.
pub(crate) fn idle_seconds(always_on: bool) -> u64 {
    if always_on { TTL_SECONDS_MAX } else { DATABASE_IDLE_SECONDS }
}

/// GiB of memory that a request means, by a size such as `4g` or by a number of MiB.
pub(crate) fn size_gib(size: Option<&str>, memory_mb: Option<u32>) -> Result<u32> {
    let by_size =
        size.map(|text| text.to_ascii_lowercase().strip_suffix('g').and_then(|gib| gib.parse().ok()));
    let by_memory = memory_mb.map(|mb| (mb % MIB_PER_GIB == 0).then_some(mb / MIB_PER_GIB));
    let wanted = match (by_size, by_memory) {
        (None, None) => Some(SIZE_DEFAULT_GIB),
        (Some(gib), None) | (None, Some(gib)) => gib,
        (Some(by_size), Some(by_memory)) => by_size.filter(|_| by_size == by_memory),
    };
    wanted.filter(|gib| SIZES_GIB.contains(gib)).ok_or_else(|| {
        let sizes: Vec<String> = SIZES_GIB.iter().map(|gib| format!("`{gib}g`")).collect();
        Error::bad_request(format!(
            "a database must have {} of memory (`size`, or `memory_mb` in MiB)",
            sizes.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_sizes_are_fixed_and_both_size_options_must_agree() {
        for (size, memory_mb, expect) in [
            (None, None, Some(1)),
            (Some("4g"), None, Some(4)),
            (Some("16G"), Some(16 * 1024), Some(16)),
            (None, Some(2048), Some(2)),
            (Some("4g"), Some(1024), None),
            (Some("3g"), None, None),
            (Some("4"), None, None),
            (Some("-1g"), None, None),
            (None, Some(1500), None),
        ] {
            assert_eq!(size_gib(size, memory_mb).ok(), expect, "{size:?} {memory_mb:?}");
        }
    }

    #[test]
    fn database_ids_never_look_like_sandbox_addresses() {
        let id = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";
        for (label, expect) in
            [(id, false), ("12345678-7d7f-4c58", true), ("8000-a", true), ("1234567a-1", false)]
        {
            assert_eq!(begins_with_port(label), expect, "{label}");
        }
        assert!((0..1000).all(|_| !begins_with_port(fresh_id().as_str())));
    }
}
