//! Durable disks: their contents in the guest, after a boot, a restore and a fork.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use pandastack_engine::conformance::Fixture;
use pandastack_engine::{Boot, Machine, MachineFiles, Restore, SaveTarget, Volume};

use crate::fixture::QemuFixture;

const BYTES: u64 = 8 << 20;

fn volume(image: &Path) -> Volume {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(image).unwrap();
    let bytes = file.metadata().unwrap().len().max(BYTES);
    file.set_len(bytes).unwrap();
    Volume { image: file, bytes }
}

fn with_volume(place: MachineFiles, image: &Path) -> MachineFiles {
    MachineFiles { volumes: vec![volume(image)], ..place }
}

/// Boots a machine with a volume and writes a number to it; the machine is paused.
async fn written(fixture: &QemuFixture, image: &Path, number: u64) -> Arc<dyn Machine> {
    let boot = fixture.boot().await;
    let machine =
        fixture.engine().boot(Boot { place: with_volume(boot.place, image), ..boot }).await.unwrap();
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "volume-size").await, BYTES);
    assert_eq!(fixture.ask_for(&*machine, &format!("volume-write {number}")).await, number);
    machine.pause().await.unwrap();
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_attached_after_boot_restore_and_fork() {
    let fixture = match QemuFixture::prepare(None).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let image = fixture.fresh_path("volume");
    let booted = written(&fixture, &image, 7).await;
    let (state, base) = (fixture.fresh_path("state"), booted.record().base_memory.clone());
    let memory = fixture.clone_memory(&base).await;
    booted.save(SaveTarget { state: state.clone(), memory: memory.clone(), base }).await.unwrap();
    let place = with_volume(fixture.place(&booted.record().disk).await, &image);
    booted.kill().await.unwrap();
    let restored =
        fixture.engine().restore(Restore { shape: fixture.shape(), place, state, memory }).await.unwrap();
    restored.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*restored, "volume-read").await, 7);
    restored.grow_volume(0, 2 * BYTES).await.unwrap();
    fixture.ask_until(&*restored, "volume-size", 2 * BYTES).await;
    restored.pause().await.unwrap();
    let copy = fixture.fresh_path("volume");
    fs::copy(&image, &copy).unwrap();
    let place = with_volume(fixture.place_beside(&*restored).await, &copy);
    let forked = restored.fork(vec![place]).await.unwrap().remove(0).unwrap();
    forked.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*forked, "volume-size").await, 2 * BYTES);
    assert_eq!(fixture.ask_for(&*forked, "volume-write 8").await, 8);
    restored.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*restored, "volume-read").await, 7);
    forked.kill().await.unwrap();
    restored.kill().await.unwrap();
}
