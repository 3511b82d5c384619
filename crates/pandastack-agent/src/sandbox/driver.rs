//! The driver: owns a sandbox's record and machine, and performs one operation at a time.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use pandastack_engine::MachineExit;
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::IdentityApplied;
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::api::Keep;
use pandastack_types::{SandboxState, Transition, chain};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use super::accept::{Request, Verdict, accept};
use super::activity::{Activity, TrafficSample};
use super::grants::Grants;
use super::handle::{Command, QUEUE_MAX, Reply, SandboxHandle};
use super::view::view_of;
use crate::blocking::blocking;
use crate::budget::OutputBudget;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::launch::GUEST_ANSWER_MAX;
use crate::record::{SandboxRecord, write_record};
use crate::running_machine::RunningMachine;

/// Starts of one sandbox at once; more are not waited for.
pub(super) const STARTS_MAX: u32 = 4096;

/// A sandbox and its machine.
pub(crate) struct Driver {
    pub(super) host: Arc<Host>,
    pub(super) record: SandboxRecord,
    pub(super) live: Option<RunningMachine>,
    pub(super) activity: Arc<Activity>,
    pub(super) output_budget: OutputBudget,
    /// Time and value of the last reading of the processor time.
    pub(super) cpu_seen: Option<(Instant, u64)>,
    /// Grants by which edges send requests past this driver; closed before the guest stops.
    pub(super) grants: Grants,
    /// A snapshot that is being written beside the driver.
    pub(super) writing: Option<JoinHandle<()>>,
    /// Children of a fork that come up beside the driver.
    pub(super) coming_up: Option<JoinHandle<()>>,
    /// The pending response of a guest to a thaw request.
    pub(super) thawing: Option<JoinHandle<Result<IdentityApplied>>>,
    /// When the present sleep began.
    pub(super) asleep_since: Instant,
    /// A permit for each start that is in progress.
    pub(super) starts: Arc<Semaphore>,
    /// Number of rollbacks: processes from before a rollback cannot be followed after it.
    pub(super) rollbacks: u64,
    /// The last sample of the network traffic.
    pub(super) looked: TrafficSample,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<AgentSandbox>,
}

/// Starts the driver of a sandbox whose record and machine exist, and lists it.
pub(crate) fn spawn(host: &Arc<Host>, record: SandboxRecord, live: Option<RunningMachine>) -> SandboxHandle {
    let (sender, commands) = mpsc::channel(QUEUE_MAX);
    let activity = Activity::new();
    let spec = &record.spec;
    let output_budget = OutputBudget::new(&host.held_output, &spec.id, spec.workspace.as_ref());
    let (view, watcher) = watch::channel(view_of(host, &record, live.as_ref()));
    let handle = SandboxHandle {
        id: record.spec.id.clone(),
        incarnation: record.spec.incarnation,
        shape: record.shape,
        runtime_dir: record.machine.as_ref().map(|machine| machine.runtime_dir.clone()),
        commands: sender,
        view: watcher,
        activity: activity.clone(),
        output_budget: output_budget.clone(),
    };
    host.sandboxes().insert(record.spec.id.clone(), handle.clone());
    let asleep_since = Instant::now();
    let tasks = host.tasks.clone();
    let driver = Driver {
        host: host.clone(),
        record,
        live,
        activity,
        output_budget,
        cpu_seen: None,
        grants: Grants::default(),
        writing: None,
        coming_up: None,
        thawing: None,
        asleep_since,
        starts: Arc::new(Semaphore::new(STARTS_MAX as usize)),
        rollbacks: 0,
        looked: TrafficSample::new(),
        commands,
        view,
    };
    tasks.spawn(driver.run());
    handle
}

impl Driver {
    async fn run(mut self) {
        let shutdown = self.host.shutdown.clone();
        loop {
            let next = self.next_time();
            tokio::select! {
                command = self.commands.recv() => match command {
                    None => return,
                    Some(Command::Delete(reply)) => {
                        self.delete().await;
                        // The caller may be gone; the sandbox is too.
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    Some(command) => self.serve(command).await,
                },
                exit = exited(self.live.as_ref()) => self.lose(exit).await,
                told = thaw(self.thawing.as_mut()) => self.note_thaw(told).await,
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => self.on_time().await,
                // Machines outlive the agent: the next one adopts them.
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn serve(&mut self, command: Command) {
        match command {
            Command::Lease(reply) => drop(reply.send(self.lease().await)),
            Command::LeaseToStart(reply) => drop(reply.send(self.lease_to_start().await)),
            Command::Join(reply) => drop(reply.send(self.join().await)),
            Command::Grant { wake, reply } => drop(reply.send(self.open_grant(wake).await)),
            Command::Move(request, reply) => drop(reply.send(self.move_to(request).await)),
            Command::Hibernate(keep, reply) => self.go_to_sleep(keep, reply).await,
            Command::WriteOut(reply) => drop(reply.send(self.write_out().await)),
            // The caller has given up; memory may be free again.
            Command::Relieve(reply) if reply.is_closed() => {}
            Command::Relieve(reply) => drop(reply.send(self.relieve().await)),
            Command::KeepAwake(until, reply) => drop(reply.send(self.keep_awake(until).await)),
            Command::Rollback(id, reply) => drop(reply.send(self.rollback(&id).await)),
            Command::Snapshot(id, reply) => self.snapshot(&id, reply).await,
            Command::Fork(children, reply) => self.fork(children, reply).await,
            Command::SetIdle(seconds, reply) => {
                // Silence from before counts for the time that held then.
                self.activity.touch();
                self.record.spec.idle_timeout_seconds = seconds;
                drop(reply.send(self.save().await.map(|()| self.describe())));
            }
            Command::SetVerdict(verdict, reply) => {
                self.record.outdated = verdict.map(|verdict| *verdict);
                drop(reply.send(self.save().await));
            }
            Command::SetNetwork(policy, reply) => drop(reply.send(self.set_network(*policy).await)),
            Command::GrowVolume(id, bytes, reply) => drop(reply.send(self.grow_volume(id, bytes).await)),
            Command::CopyVolume(from, to, reply) => drop(reply.send(self.copy_volume(from, to).await)),
            Command::Observe(reply) => drop(reply.send(Ok(self.observe()))),
            Command::Delete(_) => {}
        }
    }

    /// The verdict of the state table. A sandbox that sleeps in memory still has its machine, and is copied
    /// and written out like a paused one.
    pub(super) fn accept(&self, request: Request) -> Verdict {
        let machine_wanted = matches!(request, Request::Snapshot | Request::Fork | Request::Hibernate);
        match self.record.sleeps_in_memory() && machine_wanted {
            true => accept(SandboxState::Paused, request),
            false => accept(self.record.state, request),
        }
    }

    /// The verdict on a copy. A sandbox that sleeps with only its disk has no memory to copy: it wakes, as
    /// for any other use.
    pub(super) async fn accept_copy(&mut self, request: Request) -> Result<Verdict> {
        let asleep = self.record.state == SandboxState::Hibernated;
        if asleep && self.record.due_verdict(Timestamp::now()).is_some() {
            // A copy would be as outdated.
            self.wake().await?;
        }
        match self.accept(request) {
            Verdict::Refuse(reason) => Err(AgentError::Conflict(reason.to_owned())),
            Verdict::FromSleep if self.sleeps_with_disk_alone()? => {
                self.wake().await?;
                Ok(self.accept(request))
            }
            verdict => Ok(verdict),
        }
    }

    async fn keep_awake(&mut self, until: Option<Timestamp>) -> Result<AgentSandbox> {
        self.ensure_awake().await?;
        self.activity.touch();
        self.record.awake_until = until;
        self.save().await?;
        Ok(self.describe())
    }

    /// Answers as soon as the sandbox is safe on disk. The next request waits until its machine has
    /// ended too.
    async fn go_to_sleep(&mut self, keep: Keep, reply: Reply<AgentSandbox>) {
        let written = match self.accept(Request::Hibernate) {
            Verdict::Refuse(reason) => Err(self.refusal(reason)),
            Verdict::Do => self.write_down(keep).await,
            _ if keep == Keep::Disk && self.record.outdated.is_some() => {
                // The way out for the owner of an outdated state: nothing else may wake it.
                let dropped = match self.has_disk_alone() {
                    Ok(false) => self.drop_memory().await,
                    alone => alone.map(|_| ()),
                };
                return drop(reply.send(dropped.map(|()| self.describe())));
            }
            _ => return drop(reply.send(Ok(self.describe()))),
        };
        match written {
            Ok(left) => {
                drop(reply.send(Ok(self.describe())));
                self.sleep_without(left).await;
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    async fn move_to(&mut self, request: Request) -> Result<AgentSandbox> {
        match (self.accept(request), request) {
            (Verdict::Refuse(reason), _) => return Err(self.refusal(reason)),
            (Verdict::Wake, _) => self.wake().await?,
            (Verdict::Resume, _) => self.resume().await?,
            (Verdict::Do, Request::Pause) => self.pause().await?,
            _ => {}
        }
        Ok(self.describe())
    }

    /// A connection to the guest; a lost one is reopened.
    pub(super) async fn guest(&mut self) -> Result<GuestClient> {
        let gone = || AgentError::Conflict("the sandbox has no machine".to_owned());
        let live = self.live.as_mut().ok_or_else(gone)?;
        if let Some(guest) = &live.guest
            && !guest.is_closed()
        {
            return Ok(guest.clone());
        }
        let stream = live.machine.connect_guest().await?;
        let guest = GuestClient::connect(stream, GUEST_ANSWER_MAX).await?;
        live.guest = Some(guest.clone());
        Ok(guest)
    }

    /// User processes are frozen first, so that a copy of the paused machine passes the identity
    /// gate as a new one does.
    async fn pause(&mut self) -> Result<()> {
        self.grants.close().await;
        self.stop_guest(self.writes_volumes()).await?;
        self.step(Transition::Paused).await
    }

    async fn resume(&mut self) -> Result<()> {
        self.resume_marked(Transition::Resumed, async |driver| driver.run_guest().await).await?;
        self.activity.touch();
        Ok(())
    }

    /// Resumes a stopped machine. The record is marked running first, because a successor agent
    /// trusts it and would copy a machine that runs. On failure the machine is stopped as before.
    pub(super) async fn resume_marked(
        &mut self,
        transition: Transition,
        run: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let still = self.record.clone();
        let gone_on = match self.step(transition).await {
            Ok(()) => run(self).await,
            Err(error) => Err(error),
        };
        if gone_on.is_err() {
            if let Some(live) = &self.live
                && let Err(error) = live.machine.pause().await
            {
                tracing::warn!(sandbox = %still.spec.id, error = %chain(&error), "cannot pause a machine; its vCPUs may be running");
            }
            self.record = still;
            if let Err(error) = self.save().await {
                tracing::error!(
                    sandbox = %self.record.spec.id, error = %chain(&error),
                    "cannot restore the record of a sandbox; it may say running"
                );
            }
        }
        gone_on
    }

    /// Returns whether the machine's memory may hold data for a durable disk.
    pub(super) fn writes_volumes(&self) -> bool {
        self.record.writes_volumes()
    }

    /// Changes the state in the record and publishes it.
    pub(super) async fn step(&mut self, transition: Transition) -> Result<()> {
        self.record.state = self.record.state.step(transition)?;
        if transition == Transition::Hibernated {
            self.fell_asleep();
        }
        if transition == Transition::Woken {
            self.record.residency = None;
            self.record.usage.asleep_seconds += self.asleep_since.elapsed().as_secs();
        }
        self.save().await
    }

    pub(super) fn fell_asleep(&mut self) {
        self.asleep_since = Instant::now();
    }

    pub(super) async fn save(&mut self) -> Result<()> {
        store_record(&self.host, &self.record).await?;
        self.show();
        Ok(())
    }

    fn show(&mut self) {
        self.view.send_replace(view_of(&self.host, &self.record, self.live.as_ref()));
        self.host.changed.notify_one();
    }

    pub(super) fn describe(&mut self) -> AgentSandbox {
        self.show();
        self.view.borrow().clone()
    }

    pub(super) fn refusal(&self, reason: &'static str) -> AgentError {
        match &self.record.failure {
            Some(failure) if self.record.state == SandboxState::Failed => AgentError::Failed(failure.clone()),
            _ => AgentError::Conflict(reason.to_owned()),
        }
    }
}

/// Writes a record. The record of a sandbox asleep on disk is synced, on a thread that may block;
/// others are not.
pub(super) async fn store_record(host: &Host, record: &SandboxRecord) -> Result<()> {
    if !record.sleeps_on_disk() {
        return write_record(&host.layout, record);
    }
    let (layout, record) = (host.layout.clone(), record.clone());
    blocking(move || write_record(&layout, &record)).await
}

/// Resolves when the machine ends; never without one.
async fn exited(live: Option<&RunningMachine>) -> MachineExit {
    let Some(live) = live else { return std::future::pending().await };
    let mut exited = live.machine.exited();
    match exited.wait_for(Option::is_some).await {
        Ok(exit) => exit.clone().unwrap_or(MachineExit { reason: "the machine ended".to_owned() }),
        Err(_) => MachineExit { reason: "the machine is no longer watched".to_owned() },
    }
}

/// Waits for the guest's response to a thaw request; never returns if none is pending.
async fn thaw(told: Option<&mut JoinHandle<Result<IdentityApplied>>>) -> Result<IdentityApplied> {
    match told {
        Some(told) => told.await.unwrap_or(Err(AgentError::Stopping)),
        None => std::future::pending().await,
    }
}
