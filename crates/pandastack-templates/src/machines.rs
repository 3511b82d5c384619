//! Machines of builds.

use std::time::Duration;

use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_store::SnapshotRecord;
use pandastack_store::templates::BuildRecord;
use pandastack_types::api::{CreateSandbox, OnTimeout};
use pandastack_types::limits::{TEMPLATE_BUILD_SECONDS_MAX, TEMPLATE_BUILD_WAIT_SECONDS_MAX};
use pandastack_types::{BuildId, Owner, Result, SnapshotId};

use crate::service::Templates;

/// Label that marks a build's machines.
pub(crate) const ROLE_LABEL: &str = "role";
/// Tag of the processes of a build's steps.
pub(crate) const STEP_TAG: &str = "pandastack-build";
/// Longest time to unpack a copied tree.
pub(crate) const UNPACK_WAIT: Duration = Duration::from_secs(900);

/// Longest lifetime of a machine.
pub(crate) const TTL_SECONDS: u64 = TEMPLATE_BUILD_SECONDS_MAX + TEMPLATE_BUILD_WAIT_SECONDS_MAX;

/// The source of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A template that comes with the platform.
    Template(String),
    /// A layer, or a version of another template.
    Snapshot(SnapshotId),
}

/// The owner of a build's machines.
pub(crate) fn owner(id: &BuildId) -> Owner {
    Owner::Build(id.clone())
}

/// A user as the owner of files. A number without a group means the group of the same number.
pub(crate) fn owner_of(user: String) -> String {
    let is_number = !user.is_empty() && user.chars().all(|char| char.is_ascii_digit());
    if is_number { format!("{user}:{user}") } else { user }
}

/// Creates a machine for a build. It ends by itself if everything else forgets it.
pub(crate) async fn create(
    templates: &Templates,
    build: &BuildRecord,
    origin: &Origin,
    role: &str,
) -> Result<Machine> {
    let mut request = CreateSandbox {
        metadata: Some([(ROLE_LABEL.to_owned(), role.to_owned())].into()),
        ttl_seconds: Some(TTL_SECONDS),
        on_timeout: Some(OnTimeout::Kill),
        ..CreateSandbox::default()
    };
    match origin {
        Origin::Template(name) => {
            request.template = Some(name.clone());
            // A snapshot has the size of the machine it shows.
            let asked = &build.spec.request;
            (request.cpu, request.memory_mb) = (asked.cpu, asked.memory_mb);
        }
        Origin::Snapshot(id) => request.from_snapshot = Some(id.clone()),
    }
    let spec = MachineSpec { workspace: build.workspace.clone(), request };
    templates.machines.create(owner(&build.id), spec, WaitPolicy::Long).await
}

/// Deletes all machines of a build.
pub(crate) async fn delete_all(templates: &Templates, id: &BuildId) -> Result<()> {
    for record in templates.machines.owned_by(&owner(id)).await? {
        templates.machines.delete(record, Some("its template build ended")).await?;
    }
    Ok(())
}

/// Takes a snapshot of a machine. Processes that its steps left running are killed first: a layer contains
/// files, not processes.
pub(crate) async fn snapshot(machine: &Machine, name: &str) -> Result<SnapshotRecord> {
    machine.snapshot_built(STEP_TAG, name.chars().take(60).collect()).await
}
