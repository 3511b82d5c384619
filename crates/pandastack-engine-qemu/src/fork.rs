//! Forking a paused machine into many.
//!
//! For each child the engine makes the sockets, connects them and accepts the connections itself,
//! so that the child starts out connected where its parent is: no greeting, no negotiation, no
//! reconnect that the guest could see. The preloaded library then puts each descriptor at the
//! number that its parent's counterpart has.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::{Confinement, EngineError, MachineFiles, Pause, Result, Volume};
use pandastack_qemu_shim::protocol::{
    CHILDREN_MAX, ChildReply, Fork, Identity, List, Lockdown, Match, PathText, RULES_MAX, Reply, Request,
    Rule, Status,
};
use pandastack_types::chain;
use tokio::net::UnixStream;

use crate::endpoints::{self, Endpoints, FileIdentities, FileIdentity, Paths};
use crate::host::Host;
use crate::limits::{FORK_MAX, PARK_MAX};
use crate::machine::{Details, Parts, QemuMachine};
use crate::qmp::Qmp;
use crate::shim_client;
use crate::volume;
use pandastack_engine::explain::explain;
use pandastack_engine::process::{KillOnDrop, Process};

const STEP: &str = "forking the machine";
/// Index of the rule for the accepted guest stream, the only one that need not match: the guest
/// stream may not be connected.
const GUEST_ACCEPTED_RULE: usize = 6;

/// Forks a machine. With `pause` everything is prepared before the machine is paused, and it runs again once all copies of it
/// exist, which is before they are spoken to.
pub(crate) async fn fork(
    parent: &QemuMachine,
    places: Vec<MachineFiles>,
    pause: Option<Pause>,
) -> Result<Vec<Result<Arc<QemuMachine>>>> {
    if !parent.host.accelerator.can_fork() {
        let reason = "its processes hold KVM descriptors, which belong to one process".to_owned();
        return Err(EngineError::Unsupported { action: "fork", reason });
    }
    let prepared: Vec<_> = batches(places).into_iter().map(|batch| prepare_batch(parent, batch)).collect();
    let going_on = match pause {
        Some(pause) => Some(pause.begin().await?),
        None => None,
    };
    let turn = parent.lock_turn().await;
    parent.require_paused(STEP).await?;
    let mut born = Vec::new();
    for batch in prepared {
        born.push(fork_batch(parent, batch).await);
    }
    if let Some(going_on) = going_on {
        // Before the children are checked: they can wait, but the parent's users are waiting.
        going_on.announce().await;
        if let Err(error) = parent.continue_guest().await {
            tracing::warn!(
                pid = parent.record.pid, error = %chain(&error),
                "cannot resume a machine after its fork"
            );
        }
    }
    // Nothing below depends on the parent's state.
    drop(turn);
    let mut outcomes = Vec::new();
    for batch in born {
        outcomes.extend(adopt_batch(parent, batch).await);
    }
    Ok(outcomes)
}

/// Runs of places that one request can carry: few enough, and all to be locked in the same way.
fn batches(places: Vec<MachineFiles>) -> Vec<Vec<MachineFiles>> {
    let kind = |place: &MachineFiles| std::mem::discriminant(&place.confinement);
    let mut batches: Vec<Vec<MachineFiles>> = Vec::new();
    for place in places {
        match batches.last_mut() {
            Some(batch) if batch.len() < CHILDREN_MAX && batch.first().map(kind) == Some(kind(&place)) => {
                batch.push(place)
            }
            _ => batches.push(vec![place]),
        }
    }
    batches
}

/// A child before its birth.
struct Seed {
    runtime_dir: PathBuf,
    disk: PathBuf,
    console: PathBuf,
    confinement: Confinement,
    files: FileIdentities,
    volumes: Vec<Volume>,
    /// Ours.
    qmp: std::os::unix::net::UnixStream,
    guest: std::os::unix::net::UnixStream,
    /// The child's, in the order of the rules.
    replacements: Vec<OwnedFd>,
}

/// Children of one park, before their birth.
struct Batch {
    /// Error of a place without a child; `None` for a place that gets the next of `seeds`.
    outcomes: Vec<Option<EngineError>>,
    seeds: Vec<Seed>,
}

/// Children of one park, before they are spoken to.
struct NewChildren {
    batch: Batch,
    reply: Result<(Reply, Vec<OwnedFd>)>,
}

/// Prepares places for as many children as one park can take.
fn prepare_batch(parent: &QemuMachine, places: Vec<MachineFiles>) -> Batch {
    let (mut outcomes, mut seeds) = (Vec::new(), Vec::new());
    for place in places {
        let allowed = check_confinement(parent.record.confinement, place.confinement);
        match allowed.and_then(|()| prepare(&parent.host, place)) {
            Ok(seed) => {
                seeds.push(seed);
                outcomes.push(None);
            }
            Err(error) => outcomes.push(Some(error)),
        }
    }
    Batch { outcomes, seeds }
}

/// Forks into a batch.
async fn fork_batch(parent: &QemuMachine, batch: Batch) -> NewChildren {
    let none = || Ok((Reply::new(Status::Ok), Vec::new()));
    let reply = if batch.seeds.is_empty() { none() } else { request_fork(parent, &batch.seeds).await };
    NewChildren { batch, reply }
}

/// Creates the machines of a batch; one outcome per place, in order.
async fn adopt_batch(parent: &QemuMachine, born: NewChildren) -> Vec<Result<Arc<QemuMachine>>> {
    let NewChildren { batch: Batch { outcomes, mut seeds }, reply } = born;
    // The children have their own copies by now; a connection held here would stay open after its
    // child ended.
    seeds.iter_mut().for_each(|seed| seed.replacements.clear());
    let (children, reason) = match reply {
        Ok((reply, pidfds)) => (
            adopt_children(parent, seeds, &reply, pidfds).await,
            "the emulator did not answer for this child".to_owned(),
        ),
        Err(error) => (Vec::new(), chain(&error)),
    };
    let mut children = children.into_iter();
    let silent = || Err(EngineError::Vmm { step: STEP, detail: reason.clone() });
    let mut settle = |outcome: Option<EngineError>| match outcome {
        Some(error) => Err(error),
        None => children.next().unwrap_or_else(silent),
    };
    outcomes.into_iter().map(&mut settle).collect()
}

/// A locked-in process can change nothing about itself; its forks are of the same user.
fn check_confinement(parent: Confinement, child: Confinement) -> Result<()> {
    if parent == Confinement::Zygote || parent == child {
        return Ok(());
    }
    let reason = format!("a fork of a machine confined as {parent:?} cannot be confined as {child:?}");
    Err(EngineError::Unsupported { action: "fork into another user", reason })
}

fn prepare(host: &Host, mut place: MachineFiles) -> Result<Seed> {
    let endpoints = Endpoints::prepare(&mut place, &host.namespaces)?;
    let paths = Paths::new(&place.runtime_dir);
    let connected = |listener, path: &Path| {
        endpoints::connect_and_accept(listener, path).map_err(EngineError::io("connect to the child", path))
    };
    let (qmp, qmp_accepted) = connected(&endpoints.qmp, &paths.qmp())?;
    let (guest, guest_accepted) = connected(&endpoints.guest, &paths.guest())?;
    let no_volumes = endpoints.volumes.into_iter().map(OwnedFd::from);
    let own = [
        endpoints.disk.into(),
        endpoints.console.into(),
        endpoints.log.into(),
        endpoints.qmp,
        qmp_accepted,
        endpoints.guest,
        guest_accepted,
        endpoints.tap,
        endpoints.shim,
    ];
    Ok(Seed {
        runtime_dir: place.runtime_dir,
        disk: place.disk,
        console: place.console,
        confinement: place.confinement,
        files: endpoints.files,
        qmp,
        guest,
        volumes: place.volumes,
        replacements: own.into_iter().chain(no_volumes).collect(),
    })
}

/// Rules that find descriptors in the parent, in the order of [`Seed::replacements`].
fn rules(parent: &QemuMachine) -> Result<List<Rule, RULES_MAX>> {
    let file = |identity: FileIdentity| Match::File { device: identity.device, inode: identity.inode };
    let path = |path: PathBuf| {
        PathText::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| EngineError::Vmm { step: STEP, detail: format!("{} is too long", path.display()) })
    };
    let (files, paths) = (parent.details.files, &parent.paths);
    let matches = [
        file(files.disk),
        file(files.console),
        file(files.log),
        Match::Listener(path(paths.qmp())?),
        Match::Accepted(path(paths.qmp())?),
        Match::Listener(path(paths.guest())?),
        Match::Accepted(path(paths.guest())?),
        Match::Tap,
        Match::Listener(path(paths.shim())?),
    ];
    let mut rules = List::EMPTY;
    let volumes = files.volumes.into_iter().map(file);
    for (index, matches) in matches.into_iter().chain(volumes).enumerate() {
        let rule = Rule { matches, required: index != GUEST_ACCEPTED_RULE };
        rules.push(rule).map_err(|_| EngineError::Vmm { step: STEP, detail: "too many rules".to_owned() })?;
    }
    Ok(rules)
}

async fn request_fork(parent: &QemuMachine, seeds: &[Seed]) -> Result<(Reply, Vec<OwnedFd>)> {
    let mut children = List::<Option<Identity>, CHILDREN_MAX>::EMPTY;
    let mut lockdown = Lockdown { root: PathText::EMPTY, filter: &[] };
    for seed in seeds {
        let mut identity = None;
        if parent.record.confinement != seed.confinement {
            (identity, lockdown) = parent.host.lockdown(seed.confinement);
        }
        children
            .push(identity)
            .map_err(|_| EngineError::Vmm { step: STEP, detail: "too many children".to_owned() })?;
    }
    let park_ms_max = PARK_MAX.as_millis() as u32;
    let request = Request::Fork(Fork { park_ms_max, rules: rules(parent)?, children, lockdown });
    let fds: Vec<BorrowedFd<'_>> =
        seeds.iter().flat_map(|seed| &seed.replacements).map(OwnedFd::as_fd).collect();
    let _copying = parent.lock_copying().await;
    let (reply, pidfds) =
        shim_client::request(&parent.paths.shim(), STEP, &request, &fds, PARK_MAX + FORK_MAX).await?;
    tracing::debug!(
        pid = parent.record.pid,
        children = seeds.len(),
        parked_us = reply.parked_us,
        attempts = reply.attempts,
        "forked"
    );
    Ok((reply, pidfds))
}

/// Creates machines from the started processes. All of them are watched before the first is used, so that a
/// failure affects only one machine.
async fn adopt_children(
    parent: &QemuMachine,
    seeds: Vec<Seed>,
    reply: &Reply,
    pidfds: Vec<OwnedFd>,
) -> Vec<Result<Arc<QemuMachine>>> {
    let guest_connected = reply.matched[GUEST_ACCEPTED_RULE] > 0;
    let mut pidfds = pidfds.into_iter();
    let newborn: Vec<_> =
        reply.children.iter().map(|child| watch_child(parent, child, &mut pidfds)).collect();
    let mut machines = Vec::with_capacity(seeds.len());
    for (seed, process) in seeds.into_iter().zip(newborn) {
        machines.push(match process {
            Ok(process) => adopt_child(parent, seed, process, guest_connected).await,
            Err(error) => Err(error),
        });
    }
    machines
}

/// A child's process, if it started correctly.
fn watch_child(
    parent: &QemuMachine,
    child: &ChildReply,
    pidfds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Process> {
    let failed =
        || EngineError::Vmm { step: STEP, detail: shim_client::describe(child.status, child.errno, b"") };
    let pidfd = if child.pid == 0 { None } else { pidfds.next() };
    let process = Process::watch(pidfd.ok_or_else(failed)?, &parent.host.tasks)?;
    if child.status == Status::Ok {
        return Ok(process);
    }
    process.send_kill();
    Err(failed())
}

/// Creates a machine from a process. A process that gave up before logged the reason.
async fn adopt_child(
    parent: &QemuMachine,
    seed: Seed,
    process: Process,
    guest_connected: bool,
) -> Result<Arc<QemuMachine>> {
    let paths = Paths::new(&seed.runtime_dir);
    match make_machine(parent, seed, process.clone(), guest_connected).await {
        Ok(machine) => Ok(machine),
        Err(error) => Err(explain(error, &process, &paths.log()).await),
    }
}

async fn make_machine(
    parent: &QemuMachine,
    seed: Seed,
    process: Process,
    guest_connected: bool,
) -> Result<Arc<QemuMachine>> {
    let guard = KillOnDrop::new(process.clone());
    let convert =
        |stream, path: &Path| UnixStream::from_std(stream).map_err(EngineError::io("use the socket", path));
    let qmp = Qmp::resume(convert(seed.qmp, &seed.runtime_dir)?);
    let paths = Paths::new(&seed.runtime_dir);
    let (files, volume_bytes) = volume::attach(&paths, seed.files, seed.volumes).await?;
    let guest = if guest_connected { Some(convert(seed.guest, &seed.runtime_dir)?) } else { None };
    let parts = Parts {
        shape: parent.record.shape,
        runtime_dir: seed.runtime_dir,
        disk: seed.disk,
        console: seed.console,
        base_memory: parent.record.base_memory.clone(),
        confinement: seed.confinement,
        details: Details { ram_address: parent.details.ram_address, files, volume_bytes },
        announced: parent.details.volume_bytes,
        process,
        qmp,
        guest,
    };
    let mut exited = parts.process.exited();
    let machine = QemuMachine::new(parent.host.clone(), parts)?;
    // The child's first answer shows that its threads run and that its connection is separate.
    tokio::select! {
        answered = machine.require_paused(STEP) => answered?,
        gone = exited.wait_for(Option::is_some) => {
            let reason = gone.ok().and_then(|gone| gone.as_ref().map(|exit| exit.reason.clone()));
            return Err(EngineError::Exited(reason.unwrap_or_default()));
        }
    }
    machine.process.set_oom_score(machine.record.confinement);
    machine.limit_files();
    guard.disarm();
    Ok(machine)
}
