//! Files, users and questions for machines of the QEMU engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pandastack_engine::conformance::{Fixture, Question};
use pandastack_engine::{Boot, Confinement, Engine, Machine, MachineFiles, Shape};
use pandastack_engine_qemu::{QemuConfig, QemuEngine};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::guest_image::GuestImage;
use crate::missing::Missing;

const DISK_BYTES: u64 = 16 << 20;
/// A booting guest on a busy host included.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// First user of test machines.
const USER: u32 = 70_000;

/// One engine with a temporary directory.
pub struct QemuFixture {
    engine: QemuEngine,
    image: GuestImage,
    dir: tempfile::TempDir,
    next: AtomicU64,
    /// Confinement of machines that are not forked.
    confinement: Option<Confinement>,
    vcpus: u8,
    /// One fixture at a time: machines are counted as children of this process.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::const_new(());

impl QemuFixture {
    /// Probes the engine; the error names what this host lacks. Panics when the probe fails on a host that lacks nothing.
    /// With `confinement` every restored machine gets that one, otherwise a user of its own.
    pub async fn prepare(confinement: Option<Confinement>) -> Result<Self, Missing> {
        if let Some(missing) = Missing::on_this_host() {
            return Err(missing);
        }
        let turn = TURN.lock().await;
        let image = GuestImage::prepare()?;
        let dir = tempfile::tempdir().unwrap();
        let config = QemuConfig {
            binary: None,
            library_dir: dir.path().join("lib"),
            kvm_usable: false,
            kvm_reason: "tests emulate".to_owned(),
        };
        let engine = QemuEngine::probe(config).await.expect("an engine on a host that lacks nothing");
        Ok(Self { engine, image, dir, next: AtomicU64::new(1), confinement, vcpus: 1, _turn: turn })
    }

    /// The same with machines of several processors.
    pub fn with_vcpus(mut self, vcpus: u8) -> Self {
        self.vcpus = vcpus;
        self
    }

    /// A machine that has been booted and has answered.
    pub async fn booted(&self) -> Arc<dyn Machine> {
        let mut boot = self.boot().await;
        boot.place.confinement = self.confinement.unwrap_or(boot.place.confinement);
        let machine = self.engine.boot(boot).await.unwrap();
        machine.resume().await.unwrap();
        assert_eq!(self.ask_machine(&*machine, Question::Remember(1)).await, 1);
        machine
    }

    /// Sends a question over a new stream.
    pub async fn ask_machine(&self, machine: &dyn Machine, question: Question) -> u64 {
        let mut stream = machine.connect_guest().await.unwrap();
        timeout(ANSWER_MAX, self.ask(&mut stream, question)).await.expect("an answer in time").unwrap()
    }

    /// Sends a guest program's command over a new stream.
    pub async fn ask_for(&self, machine: &dyn Machine, text: &str) -> u64 {
        let mut stream = machine.connect_guest().await.unwrap();
        timeout(ANSWER_MAX, self.exchange(&mut stream, text)).await.expect("an answer in time").unwrap()
    }

    /// Repeats a command until the guest gives that answer: its kernel applies a change
    /// asynchronously.
    pub async fn ask_until(&self, machine: &dyn Machine, text: &str, answer: u64) {
        let started = Instant::now();
        loop {
            let given = self.ask_for(machine, text).await;
            if given == answer {
                return;
            }
            assert!(started.elapsed() < ANSWER_MAX, "{text}: {given} instead of {answer}");
        }
    }

    /// Waits until `count` emulator processes are left.
    pub async fn wait_until_living(&self, count: usize) {
        let started = Instant::now();
        while self.living() != count {
            assert!(started.elapsed() < ANSWER_MAX, "{} processes instead of {count}", self.living());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
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

    fn new_place(&self, disk: PathBuf, confinement: Confinement) -> MachineFiles {
        let runtime_dir = self.fresh_path("run");
        fs::create_dir(&runtime_dir).unwrap();
        MachineFiles {
            console: runtime_dir.join("console"),
            runtime_dir,
            disk,
            volumes: Vec::new(),
            tap: None,
            confinement,
            spare: None,
        }
    }

    fn own_user(&self) -> Confinement {
        let id = USER + self.number() as u32;
        Confinement::Full { uid: id, gid: id }
    }
}

#[async_trait]
impl Fixture for QemuFixture {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    fn shape(&self) -> Shape {
        Shape { vcpus: self.vcpus, memory_mib: 128 }
    }

    async fn boot(&self) -> Boot {
        Boot {
            shape: self.shape(),
            place: self.new_place(self.empty("disk", DISK_BYTES), self.own_user()),
            kernel: self.image.kernel.clone(),
            initrd: self.image.initrd.clone(),
            kernel_args: String::new(),
            memory: self.empty("memory", self.shape().memory_bytes()),
        }
    }

    async fn place(&self, disk: &Path) -> MachineFiles {
        let confinement = self.confinement.unwrap_or_else(|| self.own_user());
        self.new_place(self.copy(disk, "disk"), confinement)
    }

    async fn place_beside(&self, parent: &dyn Machine) -> MachineFiles {
        let confinement = match parent.record().confinement {
            Confinement::Zygote => self.own_user(),
            locked_in => locked_in,
        };
        self.new_place(self.copy(&parent.record().disk, "disk"), confinement)
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
        emulators_of(std::process::id()).len()
    }
}

impl QemuFixture {
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

/// Emulator processes whose parent is `parent`, the dead but unreaped included.
fn emulators_of(parent: u32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let emulators = stats.filter_map(|stat| {
        let (head, tail) = stat.rsplit_once(')')?;
        let ours = tail.split_ascii_whitespace().nth(1) == Some(&parent.to_string());
        let (pid, _) = head.split_once(" (qemu-system").filter(|_| ours)?;
        pid.parse().ok()
    });
    emulators.collect()
}

/// Machines outlive the process that started them; those of a failed test must not. They are reaped here: the
/// engine's watchers end with the test, and the next one counts the processes of all.
impl Drop for QemuFixture {
    fn drop(&mut self) {
        for pid in emulators_of(std::process::id()) {
            // The process is our unreaped child, so the number is still its own.
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            }
        }
    }
}
