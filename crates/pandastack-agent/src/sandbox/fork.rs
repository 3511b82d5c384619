//! Forking a sandbox: one pause, any number of children, a result for each.
//!
//! The driver does the pause; the children come up beside it ([`super::children`]), so that other
//! requests to the parent do not wait for them. The next fork does wait: the resources left for its
//! children are known only once the others are up.
//!
//! ```text
//!   driver     prepare | stop                      go on | next command
//!   beside it  prepare |      clone disks, fork          |  adopt forks, bring children up, settle, answer
//!                      |<------------ pause ------------>|
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pandastack_engine::{Machine, MachineFiles, Pause};
use pandastack_fault as fault;
use pandastack_types::agent_api::{AgentForked, SandboxSpec};
use pandastack_types::{SandboxState, chain};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::accept::{Request, Verdict};
use super::children::{Children, Start};
use super::driver::Driver;
use super::handle::Reply;
use crate::blocking::blocking;
use crate::error::Result;
use crate::host::Host;
use crate::machine_resources::MachineResources;
use crate::record::{BootMode, SandboxRecord};
use crate::snapshot::Snapshot;
use crate::volume;
use crate::{launch, launch_children};

type PreparedChild = Result<(MachineResources, MachineFiles)>;
type ForkedChildren = Vec<Result<launch_children::ForkedChild>>;

/// Signals between the driver and a fork in progress.
struct ForkSignals {
    /// Notified when all is ready for the machine to pause.
    ready: oneshot::Sender<()>,
    /// Notified when it has paused. If dropped instead, the fork is cancelled.
    still: oneshot::Receiver<()>,
    /// Notified when it continues; dropped at the end if it does not.
    resumed: oneshot::Sender<()>,
}

/// The driver's ends of [`ForkSignals`].
struct DriverSignals {
    ready: oneshot::Receiver<()>,
    still: oneshot::Sender<()>,
    resumed: oneshot::Receiver<()>,
}

/// Forks a machine and clones its disk concurrently. With `goes_on`, resumes it as soon as both are
/// done.
async fn fork_machine(
    host: Arc<Host>,
    machine: Arc<dyn Machine>,
    disk: PathBuf,
    prepared: Vec<PreparedChild>,
    goes_on: bool,
    words: ForkSignals,
) -> ForkedChildren {
    let ForkSignals { ready, still, resumed } = words;
    let own_disks: Vec<_> = prepared.iter().flatten().map(|(resources, _)| resources.disk()).collect();
    let (begin, begun) = oneshot::channel();
    let (copy, copied) = oneshot::channel();
    let cloning = async {
        if still.await.is_err() {
            return Vec::new();
        }
        // If the receiver is gone, it has failed, and reports that itself.
        let _ = begin.send(());
        let cloned = clone_disks(&host, &disk, own_disks).await;
        let _ = copy.send(());
        cloned
    };
    let (pause, _until_the_end) = match goes_on {
        true => (Some(Pause { ready, begun, copied, resumed }), None),
        false => (None, Some(resumed)),
    };
    let forking = launch_children::fork_children(&host, machine.as_ref(), prepared, pause);
    let (forked, cloned) = tokio::join!(forking, cloning);
    let forked = with_disks(&host, forked, cloned).await;
    fault::point("fork.forked").await;
    forked
}

/// Clones a disk into files that children have open already. One outcome each, in order.
async fn clone_disks(host: &Host, disk: &Path, into: Vec<PathBuf>) -> Vec<Result<()>> {
    let clone = |to: PathBuf| {
        let (store, from) = (host.store.clone(), disk.to_owned());
        blocking(move || Ok(store.clone_over(&from, &to)?))
    };
    futures::future::join_all(into.into_iter().map(clone)).await
}

/// Ends children whose disks could not be cloned.
async fn with_disks(host: &Host, forked: ForkedChildren, cloned: Vec<Result<()>>) -> ForkedChildren {
    let mut cloned = cloned.into_iter();
    let mut complete = Vec::with_capacity(forked.len());
    for child in forked {
        complete.push(match child.map(|child| (child, cloned.next())) {
            Ok((child, Some(Err(error)))) => {
                child.end(host).await;
                Err(error)
            }
            child => child.map(|(child, _)| child),
        });
    }
    complete
}

impl Driver {
    /// Forks the sandbox and returns when its children are up. It continues as it was; a sleeping sandbox
    /// stays asleep.
    pub(super) async fn fork(&mut self, children: Vec<SandboxSpec>, reply: Reply<AgentForked>) {
        self.children_up().await;
        match self.begin_fork(children).await {
            Ok(children) => {
                let host = self.host.clone();
                let start_all = async move { drop(reply.send(Ok(children.start_all(&host).await))) };
                self.coming_up = Some(self.host.tasks.spawn(start_all));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Waits until no children of this sandbox are coming up. They begin in its control group.
    pub(super) async fn children_up(&mut self) {
        if let Some(coming_up) = self.coming_up.take()
            && let Err(error) = coming_up.await
        {
            tracing::error!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "children of a fork were abandoned while they started"
            );
        }
    }

    /// Waits until nothing beside the driver needs the machine, its control group or its directory.
    /// Operations that end the machine call this first.
    pub(super) async fn alone(&mut self) {
        self.written().await;
        self.children_up().await;
    }

    async fn begin_fork(&mut self, children: Vec<SandboxSpec>) -> Result<Children> {
        let verdict = self.accept_copy(Request::Fork).await?;
        let (shape, by) = (self.record.shape, Some(&self.record.spec.id));
        self.host.free_memory(shape, children.len() as u64, by).await?;
        if verdict == Verdict::FromSleep {
            self.fork_sleep(children).await
        } else if self.host.engine.capabilities().fork {
            self.fork_process(children).await
        } else {
            self.fork_by_capture(children).await
        }
    }

    /// The machine's own process is forked: nothing is written, and children start warm.
    async fn fork_process(&mut self, children: Vec<SandboxSpec>) -> Result<Children> {
        let was_running = self.record.state == SandboxState::Running;
        let records = self.child_records(children, BootMode::Fork);
        let prepared = self.prepare_fork(&records).await?;
        fault::point("fork.prepared").await;
        let mut began = Instant::now();
        // Copies of volumes are made in the pause, and a fork must know them. Without any, all is ready before it.
        let stops_first = was_running && !self.record.spec.volumes.is_empty();
        if stops_first && let Err(error) = self.stop_guest(false).await {
            for (mut resources, _) in prepared.into_iter().flatten() {
                resources.release(&self.host).await;
            }
            self.forget_children(&records).await;
            return Err(error);
        }
        let prepared = self.with_volume_copies(prepared, &records).await;
        let (forking, cues) = self.spawn_fork(prepared, was_running)?;
        let mut stopped = Ok(());
        if was_running && !stops_first {
            // If this is dropped, the fork failed, which is handled below.
            let _ = cues.ready.await;
            began = Instant::now();
            stopped = self.stop_guest(false).await;
        }
        fault::point("fork.paused").await;
        let forked = match stopped {
            Ok(()) => {
                let _ = cues.still.send(());
                self.await_fork(was_running, cues.resumed).await
            }
            Err(error) => {
                drop(cues.still);
                Err(error)
            }
        };
        if let Err(error) = forked {
            self.end_forks(forking).await;
            self.forget_children(&records).await;
            return Err(error);
        }
        let pause_ms = if was_running { began.elapsed().as_secs_f64() * 1e3 } else { 0.0 };
        let resolved = self.resolved().await;
        Ok(Children { pause_ms, records, start: Start::Forks { forking, resolved } })
    }

    /// Starts to fork the machine beside the driver: children are checked after the parent's processes
    /// continue.
    fn spawn_fork(
        &self,
        prepared: Vec<PreparedChild>,
        goes_on: bool,
    ) -> Result<(JoinHandle<ForkedChildren>, DriverSignals)> {
        let live = self.live()?;
        let (host, machine, disk) = (self.host.clone(), live.machine.clone(), live.resources.disk());
        let (ready, is_ready) = oneshot::channel();
        let (still, is_still) = oneshot::channel();
        let (resumed, is_resumed) = oneshot::channel();
        let words = ForkSignals { ready, still: is_still, resumed };
        let forking = self.host.tasks.spawn(fork_machine(host, machine, disk, prepared, goes_on, words));
        Ok((forking, DriverSignals { ready: is_ready, still, resumed: is_resumed }))
    }

    /// Waits until the parent has resumed; for a parent that was already paused, until it may
    /// resume.
    async fn await_fork(&mut self, was_running: bool, resumed: oneshot::Receiver<()>) -> Result<()> {
        if was_running {
            return self.thaw_resumed(resumed).await;
        }
        let _ = resumed.await;
        Ok(())
    }

    /// Prepares the resources of children, and syncs the source's page cache, which a clone would
    /// otherwise write out during the pause.
    async fn prepare_fork(&self, records: &[SandboxRecord]) -> Result<Vec<PreparedChild>> {
        let resources = &self.live()?.resources;
        let disk = resources.disk();
        let written_out = crate::zygote::sync_file(&disk);
        let prepare =
            launch_children::prepare_children(&self.host, resources, self.record.shape, records, false);
        let (written_out, prepared) = tokio::join!(written_out, prepare);
        let mut written_out = vec![written_out];
        for (_, image) in self.volume_images() {
            written_out.push(crate::zygote::sync_file(&image).await);
        }
        for error in written_out.into_iter().filter_map(Result::err) {
            tracing::warn!(error = %chain(&error), "writing out a disk while the sandbox is paused");
        }
        Ok(prepared)
    }

    /// Ends the children of a parent that did not continue.
    async fn end_forks(&self, forking: JoinHandle<ForkedChildren>) {
        for child in forking.await.unwrap_or_default().into_iter().flatten() {
            child.end(&self.host).await;
        }
    }

    async fn forget_children(&self, records: &[SandboxRecord]) {
        for record in records {
            self.host.remove_dir(self.host.layout.sandbox(&record.spec.id)).await;
        }
    }

    /// Creates copies of the volumes for children. Their images are already open: the fork gets the open
    /// files.
    async fn with_volume_copies(
        &self,
        prepared: Vec<PreparedChild>,
        records: &[SandboxRecord],
    ) -> Vec<PreparedChild> {
        let (host, volumes) = (&self.host, self.volume_images());
        let with_copies = |(child, record): (PreparedChild, &SandboxRecord)| {
            let (volumes, spec) = (volumes.clone(), record.spec.clone());
            async move {
                let (mut resources, place) = child?;
                match volume::derive(host, volumes, &spec.volumes).await {
                    Ok(()) => launch::with_volumes(host, &spec, (resources, place)).await,
                    Err(error) => {
                        resources.release(host).await;
                        resources.remove(host).await;
                        Err(error)
                    }
                }
            }
        };
        futures::future::join_all(prepared.into_iter().zip(records).map(with_copies)).await
    }

    /// Forks without forking the process: one capture, restored once for each child.
    async fn fork_by_capture(&mut self, children: Vec<SandboxSpec>) -> Result<Children> {
        let (capture, pause_ms) = self.capture().await?;
        // Kept outside the snapshot directory: control does not know this snapshot, and has the
        // agent delete unknown ones.
        let dir = self.host.layout.fork(&self.record.spec.id);
        self.host.remove_dir(dir.clone()).await;
        let snapshot = Box::new(capture.publish(&self.host, dir.clone()).await?);
        let records = self.child_records(children, BootMode::Restore);
        Ok(Children { pause_ms, records, start: Start::Copies { snapshot, dir } })
    }

    /// Children of a sleeping sandbox. They get their own links to its files, because a wake removes these
    /// files.
    async fn fork_sleep(&mut self, children: Vec<SandboxSpec>) -> Result<Children> {
        let sleep = self.open_sleep()?;
        // Here, so that it is read once and not once for each child: the links have the mark that it was.
        sleep.verify(&self.host.shutdown).await?;
        let dir = self.host.layout.fork(&self.record.spec.id);
        sleep.link_to(&self.host, dir.clone(), self.volume_images()).await?;
        let snapshot = match Snapshot::open(&dir, self.host.engine.capabilities()) {
            Ok(snapshot) => Box::new(snapshot),
            Err(error) => {
                self.host.remove_dir(dir).await;
                return Err(error);
            }
        };
        let records = self.child_records(children, BootMode::Restore);
        Ok(Children { pause_ms: 0.0, records, start: Start::Copies { snapshot, dir } })
    }

    /// A forked process keeps its parent's user, because an unprivileged process cannot give its copy
    /// another. A restored child runs in a new process, under a user of its own.
    fn child_records(&self, children: Vec<SandboxSpec>, mode: BootMode) -> Vec<SandboxRecord> {
        let SandboxRecord { template, shape, uid, components, .. } = &self.record;
        let record = |spec| {
            let uid = if mode == BootMode::Fork { *uid } else { self.host.new_uid() };
            let record = SandboxRecord::new(spec, template, *shape, uid, mode);
            SandboxRecord { components: components.clone(), ..record }
        };
        children.into_iter().map(record).collect()
    }
}
