//! Durable disks: their contents in the guest, after a boot, a restore and a fork.

use std::fs::{File, OpenOptions};
use std::path::Path;

use pandastack_engine::conformance::Fixture;
use pandastack_engine::{Boot, EngineError, MachineFiles, Volume};
use pandastack_engine_firecracker::Launcher;
use rustix::fs::FlockOperation;

use crate::fixture::FirecrackerFixture;
use crate::lifecycle::fixture;

const BYTES: u64 = 2 << 20;

fn open(image: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(image).unwrap()
}

fn with_volume(place: MachineFiles, image: &Path) -> MachineFiles {
    let file = open(image);
    let bytes = file.metadata().unwrap().len().max(BYTES);
    file.set_len(bytes).unwrap();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    MachineFiles { volumes: vec![Volume { image: file, bytes }], ..place }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_attached_after_boot_and_restore_and_can_grow() {
    let fixture = fixture!(Launcher::Jailer);
    let image = fixture.fresh_path("image");
    // The template has no volume: its machines get theirs when they are restored.
    let booted = fixture.booted().await;
    assert_eq!(fixture.ask_for(&*booted, "size 1").await, 0);
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();

    let place = with_volume(fixture.place(&template.disk).await, &image);
    let machine = fixture.restored_in(&template, place).await;
    let locked = rustix::fs::flock(open(&image), FlockOperation::NonBlockingLockExclusive);
    assert!(locked.is_err(), "the lock on a volume must last as long as its machine");
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "size 1").await, BYTES);
    assert_eq!(fixture.ask_for(&*machine, "write 7 1").await, 7);
    machine.grow_volume(0, 2 * BYTES).await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "size 1").await, 2 * BYTES);
    assert!(machine.grow_volume(1, BYTES).await.is_err(), "there is no second volume");
    machine.pause().await.unwrap();
    let snapshot = fixture.save_over(&*machine, &template.memory).await;
    machine.kill().await.unwrap();
    rustix::fs::flock(open(&image), FlockOperation::NonBlockingLockExclusive).expect("the lock ends with it");

    let place = with_volume(fixture.place(&snapshot.disk).await, &image);
    let machine = fixture.restored_in(&snapshot, place).await;
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "read 1").await, 7);
    assert_eq!(fixture.ask_for(&*machine, "size 1").await, 2 * BYTES);
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_of_a_booting_machine_grow_before_it_starts() {
    let fixture = fixture!(Launcher::Direct);
    let image = fixture.fresh_path("image");
    let boot = fixture.boot().await;
    let boot = Boot { place: with_volume(boot.place, &image), ..boot };
    let machine = fixture.engine().boot(boot).await.unwrap();
    machine.grow_volume(0, 3 * BYTES).await.unwrap();
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "size 1").await, 3 * BYTES);
    assert_eq!(fixture.ask_for(&*machine, "write 9 1").await, 9);
    assert_eq!(fixture.ask_for(&*machine, "read 1").await, 9);
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_volume_is_refused() {
    let fixture = fixture!(Launcher::Direct);
    let image = fixture.fresh_path("image");
    drop(open(&image));
    let mut boot = fixture.boot().await;
    boot.place.volumes = vec![Volume { image: File::open(&image).unwrap(), bytes: 0 }];
    let refused = fixture.engine().boot(boot).await.err().unwrap();
    assert!(matches!(refused, EngineError::Unsupported { .. }), "{refused}");
    assert_eq!(fixture.living(), 0);
}
