//! Starts the children of a machine: forks of its process.

use std::sync::Arc;

use pandastack_engine::{Confinement, Machine, MachineFiles, Pause, Shape};

use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::launch::{SavedMemory, Stages, finish, with_volumes};
use crate::machine_resources::{MachineResources, Origin};
use crate::record::SandboxRecord;
use crate::running_machine::{RunningMachine, abandon, kill};

/// A child that was forked and not yet let run.
pub(crate) struct ForkedChild {
    machine: Result<Arc<dyn Machine>>,
    resources: MachineResources,
}

impl ForkedChild {
    /// Ends a child that something else is missing for.
    pub(crate) async fn end(self, host: &HostResources) {
        if let Ok(machine) = &self.machine {
            kill(machine.as_ref()).await;
        }
        abandon(host, self.resources).await;
    }
}

/// Resources for children of a machine. With `disk_now` it is a zygote, and they are complete; the
/// disks and volumes of a running machine are cloned while it is paused.
pub(crate) async fn prepare_children(
    host: &HostResources,
    parent: &MachineResources,
    shape: Shape,
    records: &[SandboxRecord],
    disk_now: bool,
) -> Vec<Result<(MachineResources, MachineFiles)>> {
    let (memory, disk) = (parent.memory(), parent.disk());
    let prepare = |record: &SandboxRecord| {
        let (id, uid, spec) = (record.spec.id.clone(), record.uid, record.spec.clone());
        let (memory, disk, group) = (memory.clone(), disk_now.then(|| disk.clone()), record.group_name());
        async move {
            let origin = Origin { memory: &memory, disk: disk.as_deref(), shape };
            let confinement = Confinement::Full { uid, gid: uid };
            let dir = host.layout.machine(&id);
            let resources =
                MachineResources::prepare(host, &group, dir, &origin, confinement, &spec.network).await?;
            if disk_now { with_volumes(host, &spec, resources).await } else { Ok(resources) }
        }
    };
    futures::future::join_all(records.iter().map(prepare)).await
}

/// Forks a **paused** machine into prepared places; with `pause`, a running machine that is paused
/// for the fork and then continues: see [`Machine::fork_and_resume`]. One result per child, in
/// order.
pub(crate) async fn fork_children(
    host: &HostResources,
    parent: &dyn Machine,
    prepared: Vec<Result<(MachineResources, MachineFiles)>>,
    pause: Option<Pause>,
) -> Vec<Result<ForkedChild>> {
    let (mut all_resources, mut places) = (Vec::new(), Vec::new());
    for child in prepared {
        match child {
            Ok((resources, place)) => {
                places.push(place);
                all_resources.push(Ok(resources));
            }
            Err(error) => all_resources.push(Err(error)),
        }
    }
    let made = match pause {
        Some(pause) => parent.fork_and_resume(places, pause).await,
        None => parent.fork(places).await,
    };
    let mut machines = match made {
        Ok(machines) => machines.into_iter(),
        Err(error) => {
            let reason = AgentError::from(error).logged_public_text();
            let mut failed = Vec::new();
            for resources in all_resources {
                failed.push(Err(match resources {
                    Ok(resources) => {
                        abandon(host, resources).await;
                        AgentError::Launch(format!("the fork failed: {reason}"))
                    }
                    Err(error) => error,
                }));
            }
            return failed;
        }
    };
    let pair = |resources: Result<MachineResources>| {
        let resources = resources?;
        let gone = || AgentError::Launch("the engine returned no machine for this child".to_owned());
        Ok(ForkedChild { machine: machines.next().ok_or_else(gone).and_then(|m| Ok(m?)), resources })
    };
    all_resources.into_iter().map(pair).collect()
}

/// Resumes a forked child and passes it through the identity gate.
pub(crate) async fn bring_up_child(
    host: &HostResources,
    record: &mut SandboxRecord,
    forked: ForkedChild,
    remembered: SavedMemory<'_>,
    stages: Stages,
) -> Result<RunningMachine> {
    finish(host, record, forked.machine, forked.resources, Some(remembered), stages).await
}
