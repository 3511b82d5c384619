//! The fake engine is an engine: it passes the conformance suite. It also fails on a test's
//! request.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use pandastack_engine::conformance::{self, Fixture, Question};
use pandastack_engine::fake::{FakeAction, FakeEngine, FakeGuest};
use pandastack_engine::{Boot, Confinement, Engine, EngineError, Machine, MachineFiles, Shape};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Answers questions of nine bytes (kind, number) with eight.
async fn guest_program(guest: FakeGuest, mut stream: UnixStream) {
    let mut question = [0; 9];
    while stream.read_exact(&mut question).await.is_ok() {
        let number = question[1..].to_vec();
        let answer = match question[0] {
            0 => {
                guest.memory.lock().unwrap().clone_from(&number);
                number
            }
            1 => guest.memory.lock().unwrap().clone(),
            2 => {
                fs::write(&guest.disk, &number).unwrap();
                number
            }
            _ => fs::read(&guest.disk).unwrap(),
        };
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

struct Files {
    engine: FakeEngine,
    directory: tempfile::TempDir,
    made: AtomicU32,
}

impl Files {
    fn new(engine: FakeEngine) -> Self {
        Files { engine, directory: tempfile::tempdir().unwrap(), made: AtomicU32::new(0) }
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.fresh_path(name);
        fs::write(&path, content).unwrap();
        path
    }
}

#[async_trait]
impl Fixture for Files {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    fn shape(&self) -> Shape {
        Shape { vcpus: 1, memory_mib: 1 }
    }

    async fn boot(&self) -> Boot {
        let disk = self.file("disk", b"");
        Boot {
            shape: self.shape(),
            place: self.place(&disk).await,
            kernel: self.file("kernel", b""),
            initrd: self.file("initrd", b""),
            kernel_args: String::new(),
            memory: self.file("memory", b""),
        }
    }

    async fn place(&self, disk: &Path) -> MachineFiles {
        let runtime_dir = self.fresh_path("run");
        fs::create_dir(&runtime_dir).unwrap();
        let (disk, console) = (self.clone_memory(disk).await, self.file("console", b""));
        MachineFiles {
            runtime_dir,
            disk,
            console,
            volumes: Vec::new(),
            tap: None,
            confinement: Confinement::Zygote,
            spare: None,
        }
    }

    async fn place_beside(&self, parent: &dyn Machine) -> MachineFiles {
        self.place(&parent.record().disk).await
    }

    async fn clone_memory(&self, memory: &Path) -> PathBuf {
        self.file("clone", &fs::read(memory).unwrap())
    }

    fn fresh_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-{}", self.made.fetch_add(1, Ordering::Relaxed)))
    }

    async fn ask(&self, stream: &mut UnixStream, question: Question) -> std::io::Result<u64> {
        let (kind, number) = match question {
            Question::Remember(number) => (0, number),
            Question::Recall => (1, 0),
            Question::Write(number) => (2, number),
            Question::Read => (3, 0),
        };
        stream.write_all(&[&[kind][..], &number.to_be_bytes()].concat()).await?;
        stream.read_u64().await
    }

    fn living(&self) -> usize {
        self.engine.living()
    }
}

#[tokio::test]
async fn the_fake_engine_passes_the_conformance_suite() {
    conformance::run(&Files::new(FakeEngine::new(guest_program))).await.assert_passed();
}

#[tokio::test]
async fn an_engine_without_fork_support_explains_why() {
    let files = Files::new(FakeEngine::without_fork("not today", guest_program));
    conformance::run(&files).await.assert_passed();
    let machine = files.engine.boot(files.boot().await).await.unwrap();
    let refused = machine.fork(Vec::new()).await.err().unwrap();
    assert!(refused.to_string().contains("not today"), "{refused}");
}

#[tokio::test]
async fn fail_nth_fails_exactly_one_call() {
    let files = Files::new(FakeEngine::new(guest_program));
    files.engine.fail_nth(FakeAction::Boot, 2);
    let first = files.engine.boot(files.boot().await).await.unwrap();
    assert!(files.engine.boot(files.boot().await).await.is_err());
    assert_eq!((files.engine.living(), files.engine.calls(FakeAction::Boot)), (1, 2));
    files.engine.boot(files.boot().await).await.unwrap();

    files.engine.fail_nth(FakeAction::ForkChild, 1);
    let places = vec![files.place_beside(&*first).await, files.place_beside(&*first).await];
    let children = first.fork(places).await.unwrap();
    assert_eq!(children.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn a_crash_is_reported_with_its_exit_reason() {
    let files = Files::new(FakeEngine::new(guest_program));
    let machine = files.engine.boot(files.boot().await).await.unwrap();
    machine.resume().await.unwrap();
    let mut stream = machine.connect_guest().await.unwrap();
    files.ask(&mut stream, Question::Remember(1)).await.unwrap();
    assert!(files.engine.crash(machine.record().pid, "out of memory"));
    assert_eq!(machine.exited().borrow().as_ref().unwrap().reason, "out of memory");
    assert!(matches!(machine.run_state().await, Err(EngineError::Exited(_))));
    assert!(files.ask(&mut stream, Question::Recall).await.is_err(), "the guest must be gone");
    assert!(!files.engine.crash(machine.record().pid, "again"));
}

#[tokio::test]
async fn a_paused_guest_does_not_run() {
    let files = Files::new(FakeEngine::new(guest_program));
    let machine = files.engine.boot(files.boot().await).await.unwrap();
    let mut stream = machine.connect_guest().await.unwrap();
    stream.write_all(&[0, 0, 0, 0, 0, 0, 0, 0, 9]).await.unwrap();
    // The guest's task has had every chance to run once all other ready tasks have.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(stream.try_read(&mut [0; 8]).is_err(), "a paused guest answered");
    machine.resume().await.unwrap();
    assert_eq!(stream.read_u64().await.unwrap(), 9);
}
