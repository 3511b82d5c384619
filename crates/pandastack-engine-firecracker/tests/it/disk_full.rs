//! Saving a machine onto a disk without room.

use std::fs;
use std::path::{Path, PathBuf};

use pandastack_engine::SaveTarget;
use pandastack_engine::conformance::Fixture;
use pandastack_engine_firecracker::Launcher;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fixture::FirecrackerFixture;
use crate::lifecycle::fixture;

/// A file system with room for device state, but not for memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn sparse(path: &Path, bytes: u64) {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_survives_a_save_to_a_full_disk() {
    let fixture = fixture!(Launcher::Jailer);
    let machine = fixture.booted().await;
    let base = machine.record().base_memory.clone();
    let disk = SmallDisk::mount(fixture.fresh_path("small"));
    machine.pause().await.unwrap();
    for _ in 0..2 {
        let (state, memory) = (disk.path("state"), disk.path("memory"));
        sparse(&memory, fixture.shape().memory_bytes());
        let failed = machine.save(SaveTarget { state, memory, base: base.clone() }).await.unwrap_err();
        assert!(format!("{failed:?}").contains("No space left on device"), "{failed:?}");
        assert_eq!(fs::metadata(disk.path("memory")).map(|file| owner(&file)).unwrap(), 0);
    }
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "remember 6").await, 6);
    machine.pause().await.unwrap();
    let saved = fixture.save_over(&*machine, &base).await;
    machine.kill().await.unwrap();
    let restored = fixture.restored(&saved).await;
    restored.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*restored, "recall").await, 6);
    restored.kill().await.unwrap();
}

fn owner(file: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(file)
}
