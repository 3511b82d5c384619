//! The store on real file systems.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use pandastack_image::store::OUTER_RESERVE_BYTES;
use pandastack_image::{Cloning, Store, StoreErrorKind};

use crate::build::wait_until;
use crate::{require_host, traces_of};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A directory on an ext4 file system of its own (no reflink), 6 GiB large; unmounted when dropped.
struct Ext4 {
    scratch: tempfile::TempDir,
}

impl Ext4 {
    fn new() -> Ext4 {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("ext4");
        std::fs::File::create(&image).unwrap().set_len(6 * GIB).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let ext4 = Ext4 { scratch };
        std::fs::create_dir(ext4.dir()).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(ext4.dir()));
        ext4
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg(self.dir().join("data/store"))
            .stderr(std::process::Stdio::null())
            .status();
        let _ = Command::new("umount").arg(self.dir()).status();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn without_reflink_a_loop_store_is_made_and_survives_a_reboot() {
    require_host!("without_reflink_a_loop_store_is_made_and_survives_a_reboot");
    let host = Ext4::new();
    let data = host.dir().join("data");
    // Left by a start that failed before there was anything to keep: no reason to settle for copies.
    std::fs::create_dir_all(data.join("store/.staging")).unwrap();
    std::fs::write(data.join("store.xfs.making"), "half made by a start that was killed").unwrap();

    let store = Store::open(&data).unwrap();
    assert!(matches!(store.cloning(), Cloning::ReflinkInLoop { .. }), "{:?}", store.cloning());
    assert!(!data.join("store.xfs.making").exists());
    // Everybody's disks and memory are in it.
    assert_eq!(std::fs::metadata(data.join("store.xfs")).unwrap().mode() & 0o777, 0o600);
    std::fs::write(store.root().join("kept"), "still here").unwrap();

    // A second opener, as after the agent's own restart, finds it mounted.
    assert_eq!(read(&Store::open(&data).unwrap().root().join("kept")), "still here");
    // After a reboot the image exists and is not mounted.
    store.unmount().unwrap();
    // Processes of other tests make mount namespaces, which hold the loop device until they end.
    wait_until("the loop device was not given back", || traces_of(&data).is_empty());
    assert!(!store.root().join("kept").exists());
    let again = Store::open(&data).unwrap();
    assert_eq!(read(&again.root().join("kept")), "still here");
    again.unmount().unwrap();
    again.unmount().unwrap();
}

#[test]
fn clones_share_extents_and_are_independent() {
    require_host!("clones_share_extents_and_are_independent");
    let host = Ext4::new();
    let store = Store::open(&host.dir().join("data")).unwrap();
    let (source, clone) = (store.root().join("source"), store.root().join("clone"));
    std::fs::write(&source, vec![7; 200 * MIB as usize]).unwrap();
    std::fs::File::open(&source).unwrap().sync_all().unwrap();
    let before = store.free_space().unwrap().inner.available_bytes;

    store.clone_file(&source, &clone).unwrap();
    let used = before - store.free_space().unwrap().inner.available_bytes;
    assert!(used < 8 * MIB, "a clone of 200 MiB took {used} bytes");
    let file = std::fs::OpenOptions::new().write(true).open(&clone).unwrap();
    file.write_all_at(b"mine", 0).unwrap();
    assert_eq!(std::fs::read(&source).unwrap()[..4], [7; 4]);

    // Scattered writes use only the space that is written.
    let before = store.free_space().unwrap().inner.available_bytes;
    for page in 0..150 {
        file.write_all_at(&[8; 4096], page * MIB).unwrap();
    }
    file.sync_all().unwrap();
    let used = before - store.free_space().unwrap().inner.available_bytes;
    assert!(used < 2 * MIB, "150 scattered pages took {used} bytes");

    // Never a silent copy: another file system, or a name that is taken.
    let outside = host.dir().join("outside");
    let error = store.clone_file(&source, &outside).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotClone, "{error}");
    assert!(!outside.exists());
    assert_eq!(store.clone_file(&source, &clone).unwrap_err().kind(), StoreErrorKind::AlreadyExists);
    let missing = store.root().join("missing");
    assert_eq!(store.clone_file(&missing, &outside).unwrap_err().kind(), StoreErrorKind::NotFound);
    drop(file);
    store.unmount().unwrap();
}

#[test]
fn store_writes_are_refused_below_the_outer_reserve() {
    require_host!("store_writes_are_refused_below_the_outer_reserve");
    let host = Ext4::new();
    let store = Store::open(&host.dir().join("data")).unwrap();
    let source = store.root().join("source");
    std::fs::write(&source, "x").unwrap();

    // Someone else fills the disk; the store's own file system still believes in gigabytes.
    let hog_path = host.dir().join("hog");
    let hog = std::fs::File::create(&hog_path).unwrap();
    let outer = store.free_space().unwrap().outer.unwrap();
    let size = outer.available_bytes - OUTER_RESERVE_BYTES / 2;
    rustix::fs::fallocate(&hog, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    assert!(store.free_space().unwrap().inner.available_bytes > GIB);

    let errors = [
        store.clone_file(&source, &store.root().join("clone")).unwrap_err(),
        store.create_sparse(&store.root().join("sparse"), GIB).unwrap_err(),
        store.stage().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains("store.xfs"), "which file system is full? {error}");
    }
    assert_eq!(read(&source), "x");
    drop(hog);
    std::fs::remove_file(hog_path).unwrap();
    store.clone_file(&source, &store.root().join("clone")).unwrap();
    store.unmount().unwrap();
}

#[test]
fn deleted_data_is_returned_to_the_outer_file_system() {
    require_host!("deleted_data_is_returned_to_the_outer_file_system");
    let host = Ext4::new();
    let data = host.dir().join("data");
    let store = Store::open(&data).unwrap();
    let allocated = || std::fs::metadata(data.join("store.xfs")).unwrap().blocks() * 512;
    let file = store.root().join("large");
    std::fs::write(&file, vec![1; 300 * MIB as usize]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    let full = allocated();
    store.remove(&file).unwrap();
    let root = std::fs::File::open(store.root()).unwrap();
    // Freed blocks are discarded when the log has them. Unmounting writes it only if no other namespace has
    // the mount, and processes of other tests make namespaces.
    wait_until("the space of a deleted file was not returned", || {
        rustix::fs::syncfs(&root).unwrap();
        allocated() + 250 * MIB < full
    });
    drop(root);
    store.unmount().unwrap();
}

#[test]
fn a_directory_is_published_atomically() {
    require_host!("a_directory_is_published_atomically");
    let host = Ext4::new();
    let store = Store::open(&host.dir().join("data")).unwrap();
    let target = store.root().join("snapshots/one");

    let abandoned = store.stage().unwrap();
    std::fs::write(abandoned.path().join("half"), "x").unwrap();
    let left = abandoned.path().to_path_buf();
    drop(abandoned);
    assert!(!left.exists() && !target.exists());

    let staging = store.stage().unwrap();
    std::fs::create_dir(staging.path().join("sub")).unwrap();
    std::fs::write(staging.path().join("sub/file"), "whole").unwrap();
    staging.publish(&target).unwrap();
    assert_eq!(read(&target.join("sub/file")), "whole");

    let second = store.stage().unwrap();
    assert_eq!(second.publish(&target).unwrap_err().kind(), StoreErrorKind::AlreadyExists);
    assert_eq!(read(&target.join("sub/file")), "whole");

    store.remove(&target).unwrap();
    store.remove(&target).unwrap();
    assert!(!target.exists());
    std::fs::create_dir_all(store.root().join(".staging/left-by-a-crash")).unwrap();
    store.sweep().unwrap();
    assert!(!store.root().join(".staging").exists());
    store.unmount().unwrap();
}

#[test]
fn a_store_without_reflinks_copies_and_reports_why() {
    // Needs no privileges: an unprivileged start leaves this behind.
    let scratch = tempfile::tempdir().unwrap();
    let data = scratch.path().join("data");
    std::fs::create_dir_all(data.join("store")).unwrap();
    std::fs::write(data.join("store/disk"), "copied earlier").unwrap();
    let store = Store::open(&data).unwrap();
    match store.cloning() {
        Cloning::SparseCopy { reason } => assert!(reason.contains("no reflink"), "{reason}"),
        Cloning::Reflink => eprintln!("SKIPPED the copying part: this file system has reflink"),
        Cloning::ReflinkInLoop { .. } => panic!("the copied files are hidden by a mount"),
    }
    let clone = store.root().join("clone");
    store.clone_file(&store.root().join("disk"), &clone).unwrap();
    assert_eq!(read(&clone), "copied earlier");
    assert_eq!(store.free_space().unwrap().outer, None);
}

#[test]
fn an_image_is_imported_with_its_holes() {
    require_host!("an_image_is_imported_with_its_holes");
    let host = Ext4::new();
    let store = Store::open(&host.dir().join("data")).unwrap();
    let image = host.dir().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(8 * GIB).unwrap();
    file.write_all_at(b"superblock", 1024).unwrap();
    let imported = store.root().join("image");
    store.import_file(&image, &imported).unwrap();
    let metadata = std::fs::metadata(&imported).unwrap();
    assert_eq!(metadata.len(), 8 * GIB);
    assert!(metadata.blocks() * 512 < MIB, "{} blocks", metadata.blocks());
    store.unmount().unwrap();
}
