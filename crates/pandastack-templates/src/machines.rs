//! Machines of builds.

use std::time::Duration;

use axum::body::Body;
use pandastack_agent_client::{CallOptions, StreamOptions};
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_store::SnapshotRecord;
use pandastack_store::templates::BuildRecord;
use pandastack_types::agent_api::endpoints::{PackArchive, ReadFile, SetAttributes, StatFile, UnpackArchive};
use pandastack_types::agent_api::{PathQuery, UnpackQuery};
use pandastack_types::api::{self, CreateSandbox, CreateSnapshot, FileEntry, OnTimeout};
use pandastack_types::limits::{TEMPLATE_BUILD_SECONDS_MAX, TEMPLATE_BUILD_WAIT_SECONDS_MAX};
use pandastack_types::{BuildId, Error, ErrorCode, Owner, Result, SnapshotId};

use crate::service::Templates;

/// Label of a build's machines that says what they are for.
pub(crate) const ROLE_LABEL: &str = "role";
/// Label of snapshots, with their owner.
pub(crate) const OWNER_LABEL: &str = "owner";
/// Tag of the processes of a build's steps.
pub(crate) const STEP_TAG: &str = "pandastack-build";
/// How long a look at a file may take.
const LOOK_WAIT: Duration = Duration::from_secs(60);
/// How long unpacking a copied tree may take.
const UNPACK_WAIT: Duration = Duration::from_secs(900);

/// How long a machine lives at most.
pub(crate) const TTL_SECONDS: u64 = TEMPLATE_BUILD_SECONDS_MAX + TEMPLATE_BUILD_WAIT_SECONDS_MAX;

/// What a machine is made from.
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

/// Makes a machine for a build. It ends by itself if everything else forgets it.
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

/// Keeps a machine as it is now. What its steps left running is ended before: a layer is files, not
/// processes.
pub(crate) async fn snapshot(machine: &Machine, name: &str) -> Result<SnapshotRecord> {
    for process in machine.processes().await? {
        let runs = process.exit_code.is_none() || process.lingering;
        if runs && process.tag.as_deref() == Some(STEP_TAG) {
            match machine.kill(process.id).await {
                // It ended by itself since it was listed, long enough ago to be forgotten.
                Err(error) if error.code == ErrorCode::NotFound => {}
                ended => ended?,
            }
        }
    }
    let owner = machine.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
    let request = CreateSnapshot {
        name: Some(name.chars().take(60).collect()),
        metadata: Some([(OWNER_LABEL.to_owned(), owner)].into()),
        ..CreateSnapshot::default()
    };
    machine.snapshot(request).await
}

/// What a path is in a machine; `None` if there is nothing.
pub(crate) async fn stat(machine: &Machine, path: &str) -> Result<Option<FileEntry>> {
    let call = StatFile::new(machine.id().clone(), PathQuery { path: path.to_owned() });
    let options = CallOptions::on_sandbox(machine.record.incarnation, LOOK_WAIT);
    match machine.client().call(call, options, ()).await.map_err(Error::from) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the mode of a file or directory.
pub(crate) async fn set_mode(machine: &Machine, path: &str, mode: u32) -> Result<()> {
    let call = SetAttributes::new(machine.id().clone(), PathQuery { path: path.to_owned() });
    let options = CallOptions::on_sandbox(machine.record.incarnation, LOOK_WAIT);
    let wanted = api::SetAttributes { mode: Some(format!("{mode:04o}")), ..api::SetAttributes::default() };
    machine.client().call(call, options, &wanted).await.map(drop)?;
    Ok(())
}

/// A file of a machine, as it is read.
pub(crate) async fn read(machine: &Machine, path: &str) -> Result<Body> {
    let call = ReadFile::new(machine.id().clone(), PathQuery { path: path.to_owned() });
    let options = StreamOptions::on_sandbox(machine.record.incarnation);
    Ok(Body::new(machine.client().stream(call, options, ()).await?.into_body()))
}

/// A directory or file of a machine as an archive that is made while it is read.
pub(crate) async fn pack(machine: &Machine, path: &str) -> Result<Body> {
    let call = PackArchive::new(machine.id().clone(), PathQuery { path: path.to_owned() });
    let options = StreamOptions::on_sandbox(machine.record.incarnation);
    Ok(Body::new(machine.client().stream(call, options, ()).await?.into_body()))
}

/// Unpacks an archive into a directory; what it makes belongs to `user`.
pub(crate) async fn unpack(machine: &Machine, directory: &str, user: &str, archive: Body) -> Result<()> {
    let query = UnpackQuery { path: directory.to_owned(), user: Some(user.to_owned()) };
    let call = UnpackArchive::new(machine.id().clone(), query);
    let options = CallOptions::on_sandbox(machine.record.incarnation, UNPACK_WAIT);
    machine.client().call(call, options, archive).await.map(drop)?;
    Ok(())
}
