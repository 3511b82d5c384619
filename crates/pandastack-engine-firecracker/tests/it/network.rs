//! The network of a machine: the caller's tap, of any name and in any namespace.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, unshare};
use pandastack_engine::conformance::Fixture;
use pandastack_engine::{Boot, EngineError, Machine, MachineFiles, tap};
use pandastack_engine_firecracker::Launcher;

use crate::fixture::FirecrackerFixture;
use crate::lifecycle::fixture;

/// A tap in a network namespace of its own, and that namespace.
pub fn tap(name: &'static str) -> (OwnedFd, OwnedFd) {
    let make = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let made = tap::create(name).unwrap();
        let namespace = tap::namespace(made.as_fd()).unwrap();
        (made, namespace)
    };
    std::thread::spawn(make).join().unwrap()
}

fn runs_in(machine: &dyn Machine, namespace: &OwnedFd) -> bool {
    let theirs = fs::metadata(format!("/proc/{}/ns/net", machine.record().pid)).unwrap();
    let given = File::from(namespace.try_clone().unwrap()).metadata().unwrap();
    theirs.ino() == given.ino()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_restores_onto_another_tap_in_another_namespace() {
    let fixture = fixture!(Launcher::Jailer);
    let (first, first_namespace) = tap("first0");
    let boot = fixture.boot().await;
    let boot = Boot { place: MachineFiles { tap: Some(first), ..boot.place }, ..boot };
    let booted = fixture.engine().boot(boot).await.unwrap();
    assert!(runs_in(&*booted, &first_namespace));
    booted.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*booted, "remember 4").await, 4);
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;

    let (second, second_namespace) = tap("second0");
    let place = MachineFiles { tap: Some(second), ..fixture.place(&template.disk).await };
    let restored = fixture.restored_in(&template, place).await;
    assert!(runs_in(&*restored, &second_namespace));
    restored.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*restored, "recall").await, 4);
    // Restore a machine without a network from the same snapshot.
    let unconnected = fixture.restored(&template).await;
    unconnected.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*unconnected, "recall").await, 4);
    for machine in [booted, restored, unconnected] {
        machine.kill().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_tap_descriptor_is_refused() {
    let fixture = fixture!(Launcher::Jailer);
    let mut boot = fixture.boot().await;
    boot.place.tap = Some(File::open("/dev/null").unwrap().into());
    let refused = fixture.engine().boot(boot).await.err().unwrap();
    assert!(matches!(refused, EngineError::Io { .. }), "{refused}");
    assert_eq!(fixture.living(), 0);
}
