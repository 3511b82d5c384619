//! Forking a sandbox: one pause, any number of children, a result for each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use pandastack_engine::{GoingOn, Place};
use pandastack_fault as fault;
use pandastack_types::SandboxState;
use pandastack_types::agent_api::{AgentForked, ChildOutcome, SandboxSpec};
use tokio::sync::oneshot;

use super::accept::{Request, Verdict};
use super::create::commit;
use super::{Driver, spawn};
use crate::blocking;
use crate::error::{AgentError, Result};
use crate::home::Home;
use crate::host::Host;
use crate::launch::{self, Live, Remembered, Stages};
use crate::record::{BootMode, SandboxRecord};
use crate::snapshot::Snapshot;
use crate::volume;

type Made = Result<(SandboxRecord, Live)>;
type Prepared = Result<(Home, Place)>;

/// Runs launches a few at a time, in order: all at once they would only take the processors from each other, and the
/// first child would be as late as the last.
async fn in_turns(launches: impl Iterator<Item = impl Future<Output = Made>>) -> Vec<Made> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    futures::stream::iter(launches).buffered(2 * processors).collect().await
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
async fn with_disks(
    host: &Host,
    forked: Vec<Result<launch::Forked>>,
    cloned: Vec<Result<()>>,
) -> Vec<Result<launch::Forked>> {
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
    /// Forks the sandbox. It goes on as it was; a sleeper stays asleep.
    pub(super) async fn fork(&mut self, children: Vec<SandboxSpec>) -> Result<AgentForked> {
        let verdict = self.accept(Request::Fork);
        if let Verdict::Refuse(reason) = verdict {
            return Err(AgentError::Conflict(reason.to_owned()));
        }
        self.host.make_room(self.record.shape, children.len() as u64).await?;
        let ids: Vec<_> = children.iter().map(|child| child.id.clone()).collect();
        let (made, pause_ms) = if verdict == Verdict::FromSleep {
            let snapshot = self.open_sleep()?;
            (self.restore_children(children, &snapshot).await, 0.0)
        } else if self.host.engine.capabilities().fork {
            self.fork_process(children).await?
        } else {
            self.fork_by_capture(children).await?
        };
        fault::point("fork.made").await;
        let mut outcomes = Vec::new();
        for (id, made) in ids.into_iter().zip(made) {
            let outcome = self.settle(made).await;
            if let ChildOutcome::Failed(_) = outcome {
                self.host.remove_dir(self.host.layout.sandbox(&id)).await;
            }
            outcomes.push(outcome);
        }
        fault::point("fork.settled").await;
        Ok(AgentForked { pause_ms, children: outcomes })
    }

    /// The machine's own process is forked: nothing is written, and children start warm.
    async fn fork_process(&mut self, children: Vec<SandboxSpec>) -> Result<(Vec<Made>, f64)> {
        let was_running = self.record.state == SandboxState::Running;
        let records: Vec<_> =
            children.into_iter().map(|spec| self.child_record(spec, BootMode::Fork)).collect();
        let none = || AgentError::Conflict("the sandbox has no machine".to_owned());
        let home = &self.live.as_ref().ok_or_else(none)?.home;
        // A clone first writes out what its source has in the page cache; done here, that is not part of the pause.
        let disk = home.disk();
        let written_out = crate::zygote::sync_file(&disk);
        let prepare = launch::prepare_children(&self.host, home, self.record.shape, &records, false);
        let (written_out, prepared) = tokio::join!(written_out, prepare);
        let mut written_out = vec![written_out];
        for (_, image) in self.volume_images() {
            written_out.push(crate::zygote::sync_file(&image).await);
        }
        for error in written_out.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a disk is written out while the sandbox stands still");
        }

        fault::point("fork.prepared").await;
        let began = Instant::now();
        if was_running && let Err(error) = self.stop_guest(false).await {
            for (mut home, _) in prepared.into_iter().flatten() {
                home.release(&self.host).await;
                home.remove(&self.host).await;
            }
            return Err(error);
        }
        fault::point("fork.paused").await;
        let prepared = self.with_volume_copies(prepared, &records).await;
        let live = self.live.as_ref().ok_or_else(none)?;
        let (machine, host) = (live.machine.clone(), &Arc::clone(&self.host));
        let own_disks = prepared.iter().flatten().map(|(home, _)| home.disk()).collect();
        let (copied, when) = oneshot::channel();
        let cloning = async {
            let cloned = clone_disks(host, &disk, own_disks).await;
            // Whoever does not listen any more has failed, and says so.
            let _ = copied.send(());
            cloned
        };
        let (sender, resumed) = oneshot::channel();
        let (parent_runs, parent_ran) = oneshot::channel::<()>();
        let bring_up = |(mut record, forked): (SandboxRecord, Result<launch::Forked>)| async move {
            let remembered = Remembered { of_sandbox: true, mounted: record.spec.volumes.len() };
            let live =
                launch::bring_up_child(host, &mut record, forked?, remembered, Stages::begin()).await?;
            Ok((record, live))
        };
        let children = async {
            let going_on = was_running.then_some(GoingOn { when, resumed: sender });
            let forking = launch::fork_children(host, machine.as_ref(), prepared, going_on);
            let (forked, cloned) = tokio::join!(forking, cloning);
            let forked = with_disks(host, forked, cloned).await;
            fault::point("fork.forked").await;
            // Nobody uses the children yet; the parent's users wait. Who goes first has the processors.
            let _ = parent_ran.await;
            in_turns(records.into_iter().zip(forked).map(bring_up)).await
        };
        let resume = async {
            let resumed = if was_running { self.thaw_resumed(resumed).await } else { Ok(()) };
            drop(parent_runs);
            resumed.map(|()| began.elapsed().as_secs_f64() * 1e3)
        };
        match tokio::join!(resume, children) {
            (Ok(pause_ms), made) => Ok((made, pause_ms)),
            (Err(error), made) => {
                for (record, live) in made.into_iter().flatten() {
                    live.end(host).await;
                    host.remove_dir(host.layout.sandbox(&record.spec.id)).await;
                }
                Err(error)
            }
        }
    }

    /// Gives children copies of the volumes. Theirs are opened by then: a fork is told which.
    async fn with_volume_copies(&self, prepared: Vec<Prepared>, records: &[SandboxRecord]) -> Vec<Prepared> {
        let (host, volumes) = (&self.host, self.volume_images());
        let with_copies = |(child, record): (Prepared, &SandboxRecord)| {
            let (volumes, spec) = (volumes.clone(), record.spec.clone());
            async move {
                let (mut home, place) = child?;
                match volume::derive(host, volumes, &spec.volumes).await {
                    Ok(()) => launch::with_volumes(host, &spec, (home, place)).await,
                    Err(error) => {
                        home.release(host).await;
                        home.remove(host).await;
                        Err(error)
                    }
                }
            }
        };
        futures::future::join_all(prepared.into_iter().zip(records).map(with_copies)).await
    }

    /// Where processes cannot be forked: one capture, restored once for each child.
    async fn fork_by_capture(&mut self, children: Vec<SandboxSpec>) -> Result<(Vec<Made>, f64)> {
        let (capture, pause_ms) = self.capture().await?;
        // Not among the snapshots: nobody knows of it, and control has the agent forget those that it does not know.
        let dir = self.host.layout.fork(&self.record.spec.id);
        self.host.remove_dir(dir.clone()).await;
        let snapshot = capture.publish(&self.host, dir.clone()).await?;
        let made = self.restore_children(children, &snapshot).await;
        self.host.remove_dir(dir).await;
        Ok((made, pause_ms))
    }

    async fn restore_children(&self, children: Vec<SandboxSpec>, snapshot: &Snapshot) -> Vec<Made> {
        let restore = |spec| {
            let mut record = self.child_record(spec, BootMode::Restore);
            async move {
                let live = launch::restore(&self.host, &mut record, snapshot, Stages::begin()).await?;
                Ok((record, live))
            }
        };
        in_turns(children.into_iter().map(restore)).await
    }

    /// A child stays in its parent's lineage: an unprivileged process cannot give its copy another user.
    fn child_record(&self, spec: SandboxSpec, mode: BootMode) -> SandboxRecord {
        launch::new_record(spec, &self.record.template, self.record.shape, self.record.uid, mode)
    }

    async fn settle(&self, made: Made) -> ChildOutcome {
        match made {
            Ok((mut record, live)) => match commit(&self.host, &mut record) {
                Ok(()) => ChildOutcome::Made(Box::new(spawn(&self.host, record, Some(live)).view())),
                Err(error) => {
                    live.end(&self.host).await;
                    ChildOutcome::Failed(error.to_string())
                }
            },
            Err(error) => ChildOutcome::Failed(error.to_string()),
        }
    }
}
