//! Build machines and serving machines of apps.

use std::collections::BTreeMap;

pub(crate) use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, Machines, WaitPolicy};
use pandastack_store::SnapshotRecord;
use pandastack_store::apps::record::AppRecord;
use pandastack_types::api::{CreateSandbox, OnTimeout};
use pandastack_types::{AppId, Owner, Result, SandboxId, SnapshotId};

/// Lifetime of a machine that builds. It ends earlier in all cases but a lost server.
const BUILD_MACHINE_SECONDS: u64 = 4 * 3600;
/// Directory of an app's source in its machines.
pub(crate) const SOURCE_DIR: &str = "/srv/app";
/// Tag of the processes of a build.
pub(crate) const BUILD_TAG: &str = "pandastack-build";

/// The owner of an app's machines.
pub(crate) fn owner_of(app: &AppId) -> Owner {
    Owner::App(app.clone())
}

/// The purpose of a machine.
pub(crate) enum Purpose {
    /// Building: it ends by itself if everything else forgets it.
    Build,
    /// Serving.
    Serve {
        /// With these variables.
        env: BTreeMap<String, String>,
        /// Asleep after this many idle seconds.
        idle_seconds: u64,
    },
}

/// Creates one, from a snapshot if there is one.
pub(crate) async fn create(
    machines: &dyn Machines,
    app: &AppRecord,
    from: Option<&SnapshotId>,
    purpose: Purpose,
) -> Result<Machine> {
    let template = from.is_none().then(|| app.spec.template.clone());
    let mut request = CreateSandbox { template, from_snapshot: from.cloned(), ..CreateSandbox::default() };
    // A snapshot has the size of the machine it shows.
    if from.is_none() {
        (request.cpu, request.memory_mb) = (app.spec.cpu, app.spec.memory_mb);
    }
    match purpose {
        Purpose::Build => {
            request.ttl_seconds = Some(BUILD_MACHINE_SECONDS);
            request.on_timeout = Some(OnTimeout::Kill);
        }
        Purpose::Serve { env, idle_seconds } => {
            request.env = Some(env);
            request.persistent = Some(true);
            request.idle_timeout_seconds = Some(idle_seconds);
        }
    }
    let spec = MachineSpec { workspace: app.workspace.clone(), request };
    machines.create(owner_of(&app.id), spec, WaitPolicy::Long).await
}

/// Opens one that exists.
pub(crate) async fn open(machines: &dyn Machines, app: &AppRecord, id: &SandboxId) -> Result<Machine> {
    machines.open(&app.workspace, id).await
}

/// Kills processes that builds left running: interrupted steps, and background processes of others.
pub(crate) async fn end_builds(machine: &Machine) -> Result<()> {
    machine.end_steps(BUILD_TAG).await
}

/// Takes a snapshot of a machine with its memory, without processes that builds left running: they contain
/// build variables, which serving machines must not see.
pub(crate) async fn snapshot_built(machine: &Machine, name: &str) -> Result<SnapshotRecord> {
    machine.snapshot_built(BUILD_TAG, name.to_owned()).await
}
