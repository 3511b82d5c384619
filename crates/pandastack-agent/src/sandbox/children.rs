//! Children of a fork, from the end of their parent's pause until they are usable.
//!
//! Children start up beside their parent's driver. Must hold: an operation that ends the parent's machine
//! waits for them first ([`super::driver::Driver::alone`]), because forks begin in the machine's control
//! group, and copies are read from its directory.

use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use pandastack_fault as fault;
use pandastack_net::Resolved;
use pandastack_types::agent_api::{AgentForked, ChildOutcome};
use tokio::task::JoinHandle;

use super::create::commit;
use super::driver::spawn;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::launch::{self, SavedMemory, Stages};
use crate::launch_children::{ForkedChild, bring_up_child};
use crate::record::SandboxRecord;
use crate::running_machine::RunningMachine;
use crate::snapshot::Snapshot;

type LaunchResult = Result<(SandboxRecord, RunningMachine)>;

/// Children of one instant, on their way.
pub(super) struct Children {
    /// Milliseconds for which the parent was paused.
    pub pause_ms: f64,
    pub records: Vec<SandboxRecord>,
    pub start: Start,
}

/// The source that children start from.
pub(super) enum Start {
    /// Forked machines, still paused, and the names that their parent had resolved.
    Forks { forking: JoinHandle<Vec<Result<ForkedChild>>>, resolved: Vec<Resolved> },
    /// A snapshot of their parent, in a directory that is theirs.
    Copies { snapshot: Box<Snapshot>, dir: PathBuf },
}

impl Children {
    /// Brings up all children; a failure of one does not affect the others.
    pub(super) async fn start_all(self, host: &Arc<Host>) -> AgentForked {
        let Self { pause_ms, records, start } = self;
        let ids: Vec<_> = records.iter().map(|record| record.spec.id.clone()).collect();
        let made = match start {
            Start::Forks { forking, resolved } => bring_up(host, records, forking, &resolved).await,
            Start::Copies { snapshot, dir } => {
                let made = restore(host, records, &snapshot).await;
                host.remove_dir(dir).await;
                made
            }
        };
        fault::point("fork.made").await;
        let mut children = Vec::new();
        for (id, made) in ids.into_iter().zip(made) {
            let outcome = settle(host, made).await;
            if let ChildOutcome::Failed(_) = outcome {
                host.remove_dir(host.layout.sandbox(&id)).await;
            }
            children.push(outcome);
        }
        fault::point("fork.settled").await;
        AgentForked { pause_ms, children }
    }
}

async fn bring_up(
    host: &Arc<Host>,
    records: Vec<SandboxRecord>,
    forking: JoinHandle<Vec<Result<ForkedChild>>>,
    resolved: &[Resolved],
) -> Vec<LaunchResult> {
    let Ok(forked) = forking.await else {
        return records.iter().map(|_| Err(AgentError::Stopping)).collect();
    };
    let bring_up = |(mut record, forked): (SandboxRecord, Result<ForkedChild>)| async move {
        let remembered = SavedMemory { of_sandbox: true, mounted: record.spec.volumes.len(), resolved };
        let live = bring_up_child(host, &mut record, forked?, remembered, Stages::begin()).await?;
        Ok((record, live))
    };
    in_turns(records.into_iter().zip(forked).map(bring_up)).await
}

async fn restore(host: &Arc<Host>, records: Vec<SandboxRecord>, snapshot: &Snapshot) -> Vec<LaunchResult> {
    let restore = |mut record: SandboxRecord| async move {
        let live = launch::restore(host, &mut record, snapshot, Stages::begin()).await?;
        Ok((record, live))
    };
    in_turns(records.into_iter().map(restore)).await
}

/// Runs launches a few at a time, in order: all at once they would only take the processors from each other, and the
/// first child would be as late as the last.
async fn in_turns(launches: impl Iterator<Item = impl Future<Output = LaunchResult>>) -> Vec<LaunchResult> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    futures::stream::iter(launches).buffered(2 * processors).collect().await
}

async fn settle(host: &Arc<Host>, made: LaunchResult) -> ChildOutcome {
    match made {
        Ok((mut record, live)) => match commit(host, &mut record) {
            Ok(()) => ChildOutcome::Made(Box::new(spawn(host, record, Some(live)).view())),
            Err(error) => {
                live.end(host).await;
                ChildOutcome::Failed(error.logged_public_text())
            }
        },
        Err(error) => ChildOutcome::Failed(error.logged_public_text()),
    }
}
