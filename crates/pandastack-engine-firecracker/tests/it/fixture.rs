//! Files, users and questions for machines of the Firecracker engine.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pandastack_engine::conformance::{Fixture, Question};
use pandastack_engine::{
    Boot, Confinement, Engine, Machine, MachineFiles, Restore, SaveTarget, Shape, SpareFiles,
};
use pandastack_engine_firecracker::{FirecrackerConfig, FirecrackerEngine, Launcher};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::missing::{self, Missing};
use crate::toy_guest::ToyGuest;

const DISK_BYTES: u64 = 1 << 20;
/// A booting guest on a busy host included.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// First user of test machines.
const USER: u32 = 71_000;

/// One engine with a temporary directory.
pub struct FirecrackerFixture {
    engine: FirecrackerEngine,
    guest: ToyGuest,
    dir: tempfile::TempDir,
    next: AtomicU64,
    /// One fixture at a time: machines are counted as children of this process.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::const_new(());

/// Files of one snapshot.
pub struct Snapshot {
    pub state: PathBuf,
    pub memory: PathBuf,
    pub disk: PathBuf,
}

impl FirecrackerFixture {
    /// Firecracker and its jailer, as the engine finds them.
    pub fn programs() -> (PathBuf, PathBuf) {
        let firecracker = missing::firecracker().expect("Firecracker was found before");
        let jailer = missing::jailer(&firecracker).expect("its jailer was found before");
        (firecracker, jailer)
    }

    /// Probes the engine; the error names what this host lacks. Panics when the probe fails on a host that
    /// lacks nothing.
    pub async fn prepare(launcher: Launcher) -> Result<Self, Missing> {
        if let Some(missing) = Missing::on_this_host(launcher) {
            return Err(missing);
        }
        let turn = TURN.lock().await;
        let config = FirecrackerConfig {
            binary: missing::firecracker_beside_the_clone(),
            jailer: None,
            launcher,
            kvm_reason: "the toy guest runs on any KVM".to_owned(),
        };
        let probed = FirecrackerEngine::probe(config).await;
        let engine = probed.expect("an engine on a host that lacks nothing");
        let dir = tempfile::tempdir().unwrap();
        let guest = ToyGuest::build(dir.path());
        Ok(Self { engine, guest, dir, next: AtomicU64::new(1), _turn: turn })
    }

    /// A machine that has been booted and has answered.
    pub async fn booted(&self) -> Arc<dyn Machine> {
        let machine = self.engine.boot(self.boot().await).await.unwrap();
        machine.resume().await.unwrap();
        assert_eq!(self.ask_for(&*machine, "remember 1").await, 1);
        machine
    }

    /// Saves a paused machine over a clone of `base`.
    pub async fn save_over(&self, machine: &dyn Machine, base: &Path) -> Snapshot {
        let (state, memory) = (self.fresh_path("state"), self.clone_memory(base).await);
        let target = SaveTarget { state: state.clone(), memory: memory.clone(), base: base.to_owned() };
        machine.save(target).await.unwrap();
        Snapshot { state, memory, disk: self.copy(&machine.record().disk, "disk") }
    }

    /// A machine restored from a snapshot, paused.
    pub async fn restored(&self, snapshot: &Snapshot) -> Arc<dyn Machine> {
        self.restored_in(snapshot, self.place(&snapshot.disk).await).await
    }

    /// The same in a place that the test provides.
    pub async fn restored_in(&self, snapshot: &Snapshot, place: MachineFiles) -> Arc<dyn Machine> {
        let (state, memory) = (snapshot.state.clone(), snapshot.memory.clone());
        let restore = Restore { shape: self.shape(), place, state, memory };
        self.engine.restore(restore).await.unwrap()
    }

    /// A place whose process is started ahead.
    pub async fn with_spare(&self, place: MachineFiles, tap: OwnedFd) -> MachineFiles {
        let (runtime_dir, confinement) = (place.runtime_dir.clone(), place.confinement);
        let spare = self.engine.spare(SpareFiles { runtime_dir, tap, confinement }).await.unwrap();
        MachineFiles { spare: Some(spare), ..place }
    }

    /// Sends a toy guest's command over a new stream.
    pub async fn ask_for(&self, machine: &dyn Machine, text: &str) -> u64 {
        let mut stream = machine.connect_guest().await.unwrap();
        timeout(ANSWER_MAX, self.exchange(&mut stream, text)).await.expect("an answer in time").unwrap()
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.fresh_path(name);
        let status =
            Command::new("cp").args(["--reflink=auto", "--sparse=always"]).arg(from).arg(&to).status();
        assert!(status.unwrap().success(), "cannot copy {}", from.display());
        to
    }

    fn empty(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.fresh_path(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    fn new_place(&self, disk: PathBuf) -> MachineFiles {
        let runtime_dir = self.fresh_path("run");
        fs::create_dir(&runtime_dir).unwrap();
        let id = USER + self.number() as u32;
        MachineFiles {
            console: runtime_dir.join("console"),
            runtime_dir,
            disk,
            volumes: Vec::new(),
            tap: None,
            confinement: Confinement::Full { uid: id, gid: id },
            spare: None,
        }
    }

    async fn exchange(&self, stream: &mut UnixStream, text: &str) -> std::io::Result<u64> {
        let nonce = self.number();
        let (reading, mut writing) = stream.split();
        // The empty line ends an incomplete line of an earlier peer.
        writing.write_all(format!("\n{nonce} {text}\n").as_bytes()).await?;
        let mut lines = BufReader::new(reading).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some((answered, number)) = line.split_once(' ')
                && answered.parse() == Ok(nonce)
            {
                return number.parse().map_err(std::io::Error::other);
            }
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}

#[async_trait]
impl Fixture for FirecrackerFixture {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    fn shape(&self) -> Shape {
        Shape { vcpus: 1, memory_mib: 32 }
    }

    async fn boot(&self) -> Boot {
        Boot {
            shape: self.shape(),
            place: self.new_place(self.empty("disk", DISK_BYTES)),
            kernel: self.guest.kernel.clone(),
            initrd: self.guest.initrd.clone(),
            kernel_args: String::new(),
            memory: self.empty("memory", self.shape().memory_bytes()),
        }
    }

    async fn place(&self, disk: &Path) -> MachineFiles {
        self.new_place(self.copy(disk, "disk"))
    }

    async fn place_beside(&self, parent: &dyn Machine) -> MachineFiles {
        self.place(&parent.record().disk).await
    }

    async fn clone_memory(&self, memory: &Path) -> PathBuf {
        self.copy(memory, "memory")
    }

    fn fresh_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}-{}", self.number()))
    }

    async fn ask(&self, stream: &mut UnixStream, question: Question) -> std::io::Result<u64> {
        let text = match question {
            Question::Remember(number) => format!("remember {number}"),
            Question::Recall => "recall".to_owned(),
            Question::Write(number) => format!("write {number}"),
            Question::Read => "read".to_owned(),
        };
        self.exchange(stream, &text).await
    }

    fn living(&self) -> usize {
        processes_of(std::process::id()).len()
    }
}

/// Processes of machines whose parent is `parent`, the dead but unreaped included.
pub fn processes_of(parent: u32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let machines = stats.filter_map(|stat| {
        let (head, tail) = stat.rsplit_once(')')?;
        let ours = tail.split_ascii_whitespace().nth(1) == Some(&parent.to_string());
        let (pid, name) = head.split_once(" (").filter(|_| ours)?;
        ["firecracker", "jailer"].contains(&name).then(|| pid.parse().ok())?
    });
    machines.collect()
}

/// Machines outlive the process that started them; those of a failed test must not.
impl Drop for FirecrackerFixture {
    fn drop(&mut self) {
        for pid in processes_of(std::process::id()) {
            let id = rustix::process::Pid::from_raw(pid).unwrap();
            // The process is our unreaped child, so the number is still its own.
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    }
}
