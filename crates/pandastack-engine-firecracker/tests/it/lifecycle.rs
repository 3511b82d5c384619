//! State that a machine keeps through saves, loads and pauses, and the report of its end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use pandastack_engine::conformance::Fixture;
use pandastack_engine::{EngineError, Machine, Restore, RunState};
use pandastack_engine_firecracker::Launcher;
use tokio::time::timeout;

use crate::fixture::FirecrackerFixture;

macro_rules! fixture {
    ($launcher:expr) => {
        match FirecrackerFixture::prepare($launcher).await {
            Ok(fixture) => fixture,
            Err(reason) => return println!("skipped: {reason}"),
        }
    };
}
pub(crate) use fixture;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saves_over_any_base_are_complete() {
    let fixture = fixture!(Launcher::Jailer);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let base = booted.record().base_memory.clone();
    let template = fixture.save_over(&*booted, &base).await;
    let blocks = fs::metadata(&template.memory).unwrap().blocks();
    assert!(blocks * 512 < fixture.shape().memory_bytes() / 4, "a fresh guest's memory file is not sparse");
    // Only the last save is known to be complete, so this one is written whole.
    booted.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*booted, "remember 2").await, 2);
    booted.pause().await.unwrap();
    let whole = fixture.save_over(&*booted, &base).await;
    booted.kill().await.unwrap();

    let machine = fixture.restored(&template).await;
    let mut saves = vec![(whole, 2)];
    for number in 10..13 {
        machine.resume().await.unwrap();
        assert_eq!(fixture.ask_for(&*machine, &format!("remember {number}")).await, number);
        machine.pause().await.unwrap();
        // Over the template, and over the last save: both are complete.
        saves.push((fixture.save_over(&*machine, &template.memory).await, number));
        let last = saves.last().unwrap().0.memory.clone();
        saves.push((fixture.save_over(&*machine, &last).await, number));
    }
    machine.kill().await.unwrap();
    for (snapshot, expected) in &saves {
        let restored = fixture.restored(snapshot).await;
        restored.resume().await.unwrap();
        assert_eq!(fixture.ask_for(&*restored, "recall").await, *expected);
        restored.kill().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_machine_saves_completely() {
    let fixture = fixture!(Launcher::Jailer);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();
    let machine = fixture.restored(&template).await;
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "remember 5").await, 5);
    machine.pause().await.unwrap();
    fixture.save_over(&*machine, &template.memory).await;
    let record = machine.record().clone();
    drop(machine);
    // The new handle does not know the save: the pages in it are only in the process.
    let machine = fixture.engine().adopt(record).await.unwrap();
    assert_eq!(machine.run_state().await.unwrap(), RunState::Paused);
    let saved = fixture.save_over(&*machine, &template.memory).await;
    machine.kill().await.unwrap();
    let restored = fixture.restored(&saved).await;
    restored.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*restored, "recall").await, 5);
    restored.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_is_reachable_after_pause_and_resume() {
    let fixture = fixture!(Launcher::Direct);
    let machine = fixture.booted().await;
    for number in 0..3 {
        machine.pause().await.unwrap();
        machine.resume().await.unwrap();
        assert_eq!(fixture.ask_for(&*machine, &format!("remember {number}")).await, number);
    }
    let record = machine.record().clone();
    machine.pause().await.unwrap();
    drop(machine);
    let machine = fixture.engine().adopt(record).await.unwrap();
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "recall").await, 2);
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_leave_the_machine_usable() {
    let fixture = fixture!(Launcher::Direct);
    let machine = fixture.booted().await;
    for micros in [0, 50, 100, 200, 400, 800, 1_600] {
        let limit = Duration::from_micros(micros);
        let _ = timeout(limit, machine.pause()).await;
        let _ = timeout(limit, machine.resume()).await;
        machine.resume().await.unwrap();
        assert_eq!(machine.run_state().await.unwrap(), RunState::Running);
        assert_eq!(fixture.ask_for(&*machine, &format!("remember {micros}")).await, micros);
        machine.pause().await.unwrap();
        assert_eq!(machine.run_state().await.unwrap(), RunState::Paused);
        machine.resume().await.unwrap();
    }
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unstarted_machine_is_paused_and_adopted_paused() {
    let fixture = fixture!(Launcher::Direct);
    let machine = fixture.engine().boot(fixture.boot().await).await.unwrap();
    assert_eq!(machine.run_state().await.unwrap(), RunState::Paused);
    assert!(!fs::read_to_string(&machine.record().console).unwrap().contains("ready"));
    let record = machine.record().clone();
    drop(machine);
    let machine = fixture.engine().adopt(record).await.unwrap();
    // Connected ahead: the guest is not even booting.
    let mut stream = machine.connect_guest().await.unwrap();
    machine.resume().await.unwrap();
    let question = pandastack_engine::conformance::Question::Remember(3);
    assert_eq!(fixture.ask(&mut stream, question).await.unwrap(), 3);
    assert!(fs::read_to_string(&machine.record().console).unwrap().contains("toy guest: ready"));
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_process_exit_is_reported_with_its_reason() {
    let fixture = fixture!(Launcher::Jailer);
    let machine = fixture.booted().await;
    let pid = rustix::process::Pid::from_raw(machine.record().pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::SEGV).unwrap();
    let mut exited = machine.exited();
    let exit = exited.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(!exit.reason.is_empty());
    for outcome in [machine.pause().await, machine.run_state().await.map(drop)] {
        assert!(matches!(outcome, Err(EngineError::Exited(_))), "{outcome:?}");
    }
    assert!(matches!(machine.connect_guest().await, Err(EngineError::Exited(_))));
    let gone = fixture.engine().adopt(machine.record().clone()).await.err().unwrap();
    assert!(matches!(gone, EngineError::Exited(_)), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_load_includes_the_firecracker_error() {
    let fixture = fixture!(Launcher::Jailer);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();
    // Another format, and a truncated file.
    let mut other = fs::read(&template.state).unwrap();
    other[8] ^= 0x7f;
    for bytes in [other, fs::read(&template.state).unwrap()[..100].to_vec()] {
        let state = fixture.fresh_path("state");
        fs::write(&state, bytes).unwrap();
        let (place, memory) = (fixture.place(&template.disk).await, template.memory.clone());
        let restore = Restore { shape: fixture.shape(), place, state, memory };
        let refused = fixture.engine().restore(restore).await.err().unwrap().to_string();
        println!("{refused}");
        assert!(refused.contains("snapshot"), "{refused}");
        assert_eq!(fixture.living(), 0, "a failed load left its process");
    }
}

/// A machine's process has open exactly the disk and memory files that it was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_machine_opens_only_its_own_disk() {
    let fixture = fixture!(Launcher::Jailer);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    let machine = fixture.restored(&template).await;
    let open = open_inodes(&*machine);
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    assert!(open.contains(&inode(&machine.record().disk)));
    for other in [&booted.record().disk, &template.disk] {
        assert!(!open.contains(&inode(other)), "{} is open in another machine", other.display());
    }
    booted.kill().await.unwrap();
    machine.kill().await.unwrap();
}

fn open_inodes(machine: &dyn Machine) -> Vec<u64> {
    let dir = fs::read_dir(format!("/proc/{}/fd", machine.record().pid)).unwrap();
    dir.filter_map(|entry| Some(fs::metadata(entry.ok()?.path()).ok()?.ino())).collect()
}
