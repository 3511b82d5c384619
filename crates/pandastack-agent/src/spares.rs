//! Machines that are prepared ahead, where the engine gains from it: a network slot, a user, a
//! runtime directory and an empty process that is already jailed.
//!
//! They are not recorded. After a crash the next agent finds the processes in the agent's control group and
//! ends them, removes the directories, and destroys slots that no machine has ([`crate::recover`]).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_engine::{Confinement, Spare, SpareFiles};
use pandastack_net::{NetworkPolicy, SlotIndex};
use pandastack_types::chain;
use tokio::sync::Notify;

use crate::blocking::blocking;
use crate::error::Result;
use crate::host_resources::HostResources;
use crate::machine_resources::{make_dir, remove_runtime_dir};

/// Spare machines kept ready. Each costs a slot and a few megabytes.
const SPARES_READY: usize = 4;
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The resources of one machine, without the machine.
#[derive(Debug)]
pub(crate) struct SpareMachine {
    pub uid: u32,
    pub slot: SlotIndex,
    pub runtime_dir: PathBuf,
    pub process: Spare,
}

/// Spare machines that are ready.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    ready: Mutex<VecDeque<SpareMachine>>,
    taken: Notify,
}

impl Spares {
    /// Takes a spare machine, if one is ready.
    pub(crate) fn take(&self) -> Option<SpareMachine> {
        let spare = self.ready().pop_front()?;
        self.taken.notify_one();
        Some(spare)
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<SpareMachine>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps spare machines ready until the agent stops, then releases them.
pub(crate) async fn run(host: Arc<HostResources>) {
    if !host.engine.capabilities().spares {
        return;
    }
    while !host.shutdown.is_cancelled() {
        let next = async {
            if host.spares.ready().len() >= SPARES_READY {
                return host.spares.taken.notified().await;
            }
            match prepare(&host).await {
                Ok(spare) => host.spares.ready().push_back(spare),
                Err(error) => {
                    tracing::warn!(
                        error = %chain(&error),
                        "cannot start a process ahead; machines start their own"
                    );
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        };
        tokio::select! {
            () = next => {}
            () = host.shutdown.cancelled() => {}
        }
    }
    let left = std::mem::take(&mut *host.spares.ready());
    for SpareMachine { slot, runtime_dir, process, .. } in left {
        drop(process);
        release(&host, slot, runtime_dir).await;
    }
}

async fn prepare(host: &HostResources) -> Result<SpareMachine> {
    let (uid, runtime_dir) = (host.new_uid(), host.layout.machine_runtime());
    let slot = host.slots.take(&NetworkPolicy::default()).await?;
    let dir = runtime_dir.clone();
    let started = async {
        blocking(move || make_dir(&dir)).await?;
        let confinement = Confinement::Full { uid, gid: uid };
        let files = SpareFiles { runtime_dir: runtime_dir.clone(), tap: slot.tap, confinement };
        Ok(host.engine.spare(files).await?)
    };
    match started.await {
        Ok(process) => Ok(SpareMachine { uid, slot: slot.index, runtime_dir, process }),
        Err(error) => {
            release(host, slot.index, runtime_dir).await;
            Err(error)
        }
    }
}

async fn release(host: &HostResources, slot: SlotIndex, runtime_dir: PathBuf) {
    host.slots.release(slot);
    remove_runtime_dir(runtime_dir).await;
}
