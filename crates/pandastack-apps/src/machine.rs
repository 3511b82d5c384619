//! Machines of apps: those that build and those that serve.

use std::collections::BTreeMap;

use async_trait::async_trait;
use pandastack_sandboxes::machine::LineSink;
pub(crate) use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, Machines, WaitPolicy};
use pandastack_store::SnapshotRecord;
use pandastack_store::apps::record::AppRecord;
use pandastack_types::api::{CreateSandbox, CreateSnapshot, OnTimeout, Process};
use pandastack_types::{AppId, ErrorCode, Owner, Result, SandboxId, SnapshotId};

use crate::log::Log;

/// Lifetime of a machine that builds. It ends earlier in all cases but a lost server.
const BUILD_MACHINE_SECONDS: u64 = 4 * 3600;
/// Where the source of an app is in its machines.
pub(crate) const SOURCE_DIR: &str = "/srv/app";
/// Label of an app's snapshots, with their owner.
pub(crate) const OWNER_LABEL: &str = "owner";
/// Tag of the processes of a build.
pub(crate) const BUILD_TAG: &str = "pandastack-build";

/// The owner of an app's machines.
pub(crate) fn owner_of(app: &AppId) -> Owner {
    Owner::App(app.clone())
}

/// What a machine is for.
pub(crate) enum Purpose {
    /// Building: it ends by itself if everything else forgets it.
    Build,
    /// Serving.
    Serve {
        /// With these variables.
        env: BTreeMap<String, String>,
        /// Asleep after so many idle seconds.
        idle_seconds: u64,
    },
}

/// Makes one, from a snapshot if there is one.
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

/// Ends what builds left running: steps that were cut off, and what others started and did not wait for.
pub(crate) async fn end_builds(machine: &Machine) -> Result<()> {
    for process in machine.processes().await?.iter().filter(|process| is_left_by_build(process)) {
        match machine.kill(process.id).await {
            // It ended by itself since it was listed, long enough ago to be forgotten.
            Err(error) if error.code == ErrorCode::NotFound => {}
            ended => ended?,
        }
    }
    Ok(())
}

/// Keeps a machine as it is now, memory and all, but for what builds left running: that has their variables, which those
/// who serve may not see.
pub(crate) async fn snapshot_built(machine: &Machine, name: &str) -> Result<SnapshotRecord> {
    end_builds(machine).await?;
    let owner = machine.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
    let request = CreateSnapshot {
        name: Some(name.to_owned()),
        metadata: Some([(OWNER_LABEL.to_owned(), owner)].into()),
        ..CreateSnapshot::default()
    };
    machine.snapshot(request).await
}

#[async_trait]
impl LineSink for Log {
    async fn line(&self, line: &str) {
        Log::line(self, line).await;
    }
}

/// Whether something of a build's step runs, even if the step itself ended.
fn is_left_by_build(process: &Process) -> bool {
    process.tag.as_deref() == Some(BUILD_TAG) && (process.exit_code.is_none() || process.lingering)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_left_by_a_build_step_are_found_after_it() {
        let is_left = |tag: &str, exit_code: Option<i32>, lingering: bool| {
            let state = if exit_code.is_some() { "exited" } else { "running" };
            let process = serde_json::json!({"id": 1, "pid": 7, "tag": tag, "command": "x", "state": state,
                "exit_code": exit_code, "lingering": lingering, "duration_ms": 1, "stdout_start": 0, "stdout_end": 0,
                "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0});
            is_left_by_build(&serde_json::from_value(process).unwrap())
        };
        assert!(is_left(BUILD_TAG, None, false), "a step under way");
        assert!(is_left(BUILD_TAG, Some(0), true), "a step that ended, with something that it started");
        assert!(!is_left(BUILD_TAG, Some(0), false));
        assert!(!is_left("web", None, false), "no build's");
    }
}
