//! A fake engine without machines, for logic tests of the code above engines.
//!
//! The engine keeps every promise of [`Engine`] and [`Machine`] and passes the conformance suite. A machine
//! is a few values: a byte vector for memory, the disk file of its [`MachineFiles`], and a guest that is a
//! function of the test. There is no clock, no process and no randomness. Any call can be made to fail.
//!
//! Invariants: guest code makes no step while its machine is paused, and machines live until they
//! are killed or [crash](FakeEngine::crash), regardless of open handles. Adoption works within one
//! engine value (and its clones), which represents the host.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{
    Boot, Capabilities, Engine, EngineError, Isolation, KernelFormat, Machine, MachineExit, MachineFiles,
    MachineRecord, RUNTIME_DIR_BYTES_MAX, Restore, Result, RunState, SaveStats, SaveTarget, Shape, Volume,
    VolumeNaming,
};

/// First process id handed out: above the kernel's largest, so it never names a real process.
const FIRST_PID: u32 = 1 << 30;

/// Most memory a guest of a fake machine may use.
const MEMORY_BYTES_MAX: u64 = 1024 * 1024;

/// Calls that can be counted and made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FakeAction {
    /// [`Engine::boot`].
    Boot,
    /// [`Engine::restore`].
    Restore,
    /// [`Engine::adopt`].
    Adopt,
    /// [`Machine::run_state`].
    RunState,
    /// [`Machine::pause`].
    Pause,
    /// [`Machine::resume`].
    Resume,
    /// [`Machine::connect_guest`].
    ConnectGuest,
    /// [`Machine::save`].
    Save,
    /// [`Machine::fork`] as a whole.
    Fork,
    /// One child of a [`Machine::fork`].
    ForkChild,
    /// [`Machine::grow_volume`].
    GrowVolume,
    /// [`Machine::kill`].
    Kill,
}

/// The environment of a fake machine's guest.
#[derive(Debug, Clone)]
pub struct FakeGuest {
    /// Guest memory: saved, restored and copied by forks. A save keeps at most 1 MiB.
    pub memory: Arc<Mutex<Vec<u8>>>,
    /// The machine's disk file.
    pub disk: PathBuf,
}

type GuestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type GuestProgram = dyn Fn(FakeGuest, UnixStream) -> GuestFuture + Send + Sync;

/// An engine whose machines are values in this process. Clones are the same engine.
#[derive(Clone)]
pub struct FakeEngine {
    host: Arc<Host>,
}

/// State shared by all machines.
struct Host {
    capabilities: Capabilities,
    program: Box<GuestProgram>,
    state: Mutex<HostState>,
}

#[derive(Default)]
struct HostState {
    machines: BTreeMap<u32, Arc<Core>>,
    machines_made: u32,
    calls: BTreeMap<FakeAction, u64>,
    failures: Vec<(FakeAction, u64)>,
}

impl FakeEngine {
    /// Can fork. `program` serves one guest connection: frozen in pauses, dropped for a newer one or the end.
    pub fn new<F>(program: impl Fn(FakeGuest, UnixStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with_fork_reason(None, Box::new(move |guest, stream| Box::pin(program(guest, stream))))
    }

    /// As [`FakeEngine::new`], on a host where forks are not possible.
    pub fn without_fork<F>(
        reason: &str,
        program: impl Fn(FakeGuest, UnixStream) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let program = Box::new(move |guest, stream| -> GuestFuture { Box::pin(program(guest, stream)) });
        Self::with_fork_reason(Some(reason.to_owned()), program)
    }

    fn with_fork_reason(fork_reason: Option<String>, program: Box<GuestProgram>) -> Self {
        let capabilities = Capabilities {
            name: "fake",
            version: "1".to_owned(),
            isolation: Isolation::Emulated,
            kernel_format: KernelFormat::Bzimage,
            fork: fork_reason.is_none(),
            fork_reason,
            volume_naming: VolumeNaming::Serial,
            read_only_volumes: true,
            keeps_guest_streams: true,
            spares: false,
            compatibility_key: "fake-1".to_owned(),
            earlier_keys: Vec::new(),
        };
        FakeEngine { host: Arc::new(Host { capabilities, program, state: Mutex::default() }) }
    }

    /// Makes the `nth` call of an action from now on fail; 1 is the next one.
    pub fn fail_nth(&self, action: FakeAction, nth: u64) {
        let mut state = self.host.lock();
        let call = state.calls.get(&action).copied().unwrap_or_default() + nth;
        state.failures.push((action, call));
    }

    /// Number of calls of an action.
    pub fn calls(&self, action: FakeAction) -> u64 {
        self.host.lock().calls.get(&action).copied().unwrap_or_default()
    }

    /// Machines that are alive.
    pub fn living(&self) -> usize {
        self.host.lock().machines.len()
    }

    /// Ends a machine as if its process had crashed; `false` if no machine has that process id.
    pub fn crash(&self, pid: u32, reason: &str) -> bool {
        self.host.end(pid, reason)
    }
}

impl Host {
    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it if a test requested that.
    fn enter(&self, action: FakeAction) -> Result<()> {
        let mut state = self.lock();
        let call = state.calls.entry(action).or_default();
        *call += 1;
        let planned = (action, *call);
        match state.failures.iter().position(|failure| *failure == planned) {
            None => Ok(()),
            Some(at) => {
                state.failures.swap_remove(at);
                let detail = format!("call {} of {action:?} was told to fail", planned.1);
                Err(EngineError::Vmm { step: "a call of the fake engine", detail })
            }
        }
    }

    fn add(
        self: &Arc<Self>,
        shape: Shape,
        place: MachineFiles,
        base: PathBuf,
        memory: Vec<u8>,
    ) -> Result<Arc<dyn Machine>> {
        check_place(&place)?;
        let mut state = self.lock();
        let number = state.machines_made;
        state.machines_made += 1;
        let record = MachineRecord {
            pid: FIRST_PID + number,
            pid_started_ticks: u64::from(number),
            shape,
            runtime_dir: place.runtime_dir,
            disk: place.disk.clone(),
            console: place.console,
            base_memory: base,
            confinement: place.confinement,
            engine: serde_json::Value::Null,
        };
        let core = Arc::new(Core {
            guest: FakeGuest { memory: Arc::new(Mutex::new(memory)), disk: place.disk },
            record,
            run_state: watch::Sender::new(RunState::Paused),
            exited: watch::Sender::new(None),
            connection: Mutex::default(),
            tap: Mutex::new(place.tap),
            volumes: Mutex::new(place.volumes),
        });
        state.machines.insert(core.record.pid, Arc::clone(&core));
        Ok(Arc::new(FakeMachine { host: Arc::clone(self), core }))
    }

    fn end(&self, pid: u32, reason: &str) -> bool {
        let Some(core) = self.lock().machines.remove(&pid) else { return false };
        core.disconnect();
        drop(core.tap.lock().unwrap_or_else(PoisonError::into_inner).take());
        core.volumes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        core.exited.send_replace(Some(MachineExit { reason: reason.to_owned() }));
        true
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.host.capabilities
    }

    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>> {
        self.host.enter(FakeAction::Boot)?;
        for path in [&boot.kernel, &boot.initrd, &boot.memory] {
            fs::metadata(path).map_err(EngineError::io("look at a file to boot from", path))?;
        }
        self.host.add(boot.shape, boot.place, boot.memory, Vec::new())
    }

    async fn restore(&self, restore: Restore) -> Result<Arc<dyn Machine>> {
        self.host.enter(FakeAction::Restore)?;
        let memory = load(&restore)?;
        self.host.add(restore.shape, restore.place, restore.memory, memory)
    }

    async fn adopt(&self, record: MachineRecord) -> Result<Arc<dyn Machine>> {
        self.host.enter(FakeAction::Adopt)?;
        let core = self.host.lock().machines.get(&record.pid).cloned();
        match core.filter(|core| core.record.pid_started_ticks == record.pid_started_ticks) {
            Some(core) => Ok(Arc::new(FakeMachine { host: Arc::clone(&self.host), core })),
            None => Err(EngineError::Exited("no such machine".to_owned())),
        }
    }
}

/// A machine, apart from the handles to it.
struct Core {
    record: MachineRecord,
    guest: FakeGuest,
    run_state: watch::Sender<RunState>,
    exited: watch::Sender<Option<MachineExit>>,
    connection: Mutex<Option<JoinHandle<()>>>,
    /// Held open like a real process would, until the machine ends.
    tap: Mutex<Option<OwnedFd>>,
    /// Likewise.
    volumes: Mutex<Vec<Volume>>,
}

impl Core {
    fn memory(&self) -> Vec<u8> {
        self.guest.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn disconnect(&self) {
        if let Some(serving) = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take() {
            serving.abort();
        }
    }
}

struct FakeMachine {
    host: Arc<Host>,
    core: Arc<Core>,
}

impl FakeMachine {
    fn enter(&self, action: FakeAction) -> Result<()> {
        self.host.enter(action)?;
        match &*self.core.exited.borrow() {
            Some(exit) => Err(EngineError::Exited(exit.reason.clone())),
            None => Ok(()),
        }
    }

    fn check_paused(&self, step: &'static str) -> Result<()> {
        match *self.core.run_state.borrow() {
            RunState::Paused => Ok(()),
            RunState::Running => Err(EngineError::Vmm { step, detail: "the machine is running".to_owned() }),
        }
    }

    fn fork_one(&self, place: MachineFiles) -> Result<Arc<dyn Machine>> {
        self.host.enter(FakeAction::ForkChild)?;
        let MachineRecord { shape, base_memory, .. } = self.core.record.clone();
        self.host.add(shape, place, base_memory, self.core.memory())
    }
}

#[async_trait]
impl Machine for FakeMachine {
    fn record(&self) -> &MachineRecord {
        &self.core.record
    }

    fn exited(&self) -> watch::Receiver<Option<MachineExit>> {
        self.core.exited.subscribe()
    }

    async fn run_state(&self) -> Result<RunState> {
        self.enter(FakeAction::RunState)?;
        Ok(*self.core.run_state.borrow())
    }

    async fn pause(&self) -> Result<()> {
        self.enter(FakeAction::Pause)?;
        self.core.run_state.send_replace(RunState::Paused);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.enter(FakeAction::Resume)?;
        self.core.run_state.send_replace(RunState::Running);
        Ok(())
    }

    async fn connect_guest(&self) -> Result<UnixStream> {
        self.enter(FakeAction::ConnectGuest)?;
        let (ours, guests) = UnixStream::pair()
            .map_err(EngineError::io("make a socket pair", &self.core.record.runtime_dir))?;
        let serving = (self.host.program)(self.core.guest.clone(), guests);
        let serving = tokio::spawn(serve_while_running(serving, self.core.run_state.subscribe()));
        self.core.disconnect();
        *self.core.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(ours)
    }

    async fn save(&self, target: SaveTarget) -> Result<SaveStats> {
        self.enter(FakeAction::Save)?;
        self.check_paused("saving")?;
        store(&target, self.core.record.shape, &self.core.memory())
    }

    async fn fork(&self, places: Vec<MachineFiles>) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        self.enter(FakeAction::Fork)?;
        if let Some(reason) = self.host.capabilities.fork_reason.clone() {
            return Err(EngineError::Unsupported { action: "fork", reason });
        }
        self.check_paused("forking")?;
        Ok(places.into_iter().map(|place| self.fork_one(place)).collect())
    }

    async fn grow_volume(&self, place: usize, bytes: u64) -> Result<()> {
        self.enter(FakeAction::GrowVolume)?;
        let volumes = self.core.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || EngineError::Vmm { step: "growing a volume", detail: format!("none at place {place}") };
        let image = &volumes.get(place).ok_or_else(none)?.image;
        image.set_len(bytes).map_err(EngineError::io("grow a volume", &self.core.record.disk))
    }

    fn starved(&self) -> watch::Receiver<bool> {
        watch::Sender::new(false).subscribe()
    }

    async fn kill(&self) -> Result<()> {
        self.host.enter(FakeAction::Kill)?;
        self.host.end(self.core.record.pid, "killed");
        Ok(())
    }
}

/// Polls the guest's program only while the machine runs.
async fn serve_while_running(mut program: GuestFuture, mut run_state: watch::Receiver<RunState>) {
    while run_state.wait_for(|state| *state == RunState::Running).await.is_ok() {
        tokio::select! {
            // Check for a pause first: a paused guest must not take one more step.
            biased;
            paused = run_state.wait_for(|state| *state == RunState::Paused) => if paused.is_err() { return },
            () = &mut program => return,
        }
    }
}

fn check_place(place: &MachineFiles) -> Result<()> {
    if place.runtime_dir.as_os_str().len() > RUNTIME_DIR_BYTES_MAX {
        let detail = format!("{} is longer than {RUNTIME_DIR_BYTES_MAX} bytes", place.runtime_dir.display());
        return Err(EngineError::Vmm { step: "using a runtime directory", detail });
    }
    for path in [&place.runtime_dir, &place.disk] {
        fs::metadata(path).map_err(EngineError::io("look at a machine's own file", path))?;
    }
    Ok(())
}

/// Device state of a fake machine.
#[derive(Serialize, Deserialize)]
struct SavedState {
    shape: Shape,
    memory_bytes: u64,
}

fn store(target: &SaveTarget, shape: Shape, memory: &[u8]) -> Result<SaveStats> {
    let SaveTarget { state, memory: path, .. } = target;
    let saved = SavedState { shape, memory_bytes: memory.len() as u64 };
    if saved.memory_bytes > MEMORY_BYTES_MAX {
        let detail = format!("the guest uses more than {MEMORY_BYTES_MAX} bytes of memory");
        return Err(EngineError::Vmm { step: "saving", detail });
    }
    let text = serde_json::to_vec(&saved)
        .map_err(|error| EngineError::Vmm { step: "saving", detail: error.to_string() })?;
    let write_memory = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(memory)
    };
    write_memory().map_err(EngineError::io("write memory", path))?;
    fs::write(state, &text).map_err(EngineError::io("write device state", state))?;
    Ok(SaveStats {
        state_bytes: text.len() as u64,
        memory_bytes_written: saved.memory_bytes,
        took: Duration::ZERO,
    })
}

fn load(restore: &Restore) -> Result<Vec<u8>> {
    let broken = |detail: String| EngineError::Vmm { step: "loading device state", detail };
    let text = fs::read(&restore.state).map_err(EngineError::io("read device state", &restore.state))?;
    let saved: SavedState = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    if saved.shape != restore.shape || saved.memory_bytes > MEMORY_BYTES_MAX {
        return Err(broken(format!("the snapshot is of another shape: {:?}", saved.shape)));
    }
    read_exactly(&restore.memory, saved.memory_bytes).map_err(EngineError::io("read memory", &restore.memory))
}

fn read_exactly(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut memory = Vec::new();
    fs::File::open(path)?.take(bytes).read_to_end(&mut memory)?;
    if memory.len() as u64 == bytes { Ok(memory) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
