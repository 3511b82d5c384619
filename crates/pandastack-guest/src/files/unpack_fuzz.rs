//! Fuzzes unpacking: no archive changes anything outside of the directory it is unpacked into.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pandastack_guest_proto::message::RawPath;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tar::{EntryType, Header};

use super::sink::Sink;
use super::unpack::UnpackSink;

const CASES: u32 = 400;
/// Names and link targets. `OUTSIDE` is replaced by the absolute path of a directory that must not
/// change.
const NAMES: [&str; 14] = [
    "a",
    "b",
    "a/b",
    "a/b/c",
    "../outside/secret",
    "OUTSIDE/secret",
    "a/../../outside/secret",
    "link",
    "link/secret",
    "link/a",
    "a/link/secret",
    "./a",
    "..",
    "",
];
const TARGETS: [&str; 10] =
    ["..", "../outside", "../outside/secret", "OUTSIDE", "OUTSIDE/secret", "a", "link", ".", "../..", "a/.."];

#[derive(Debug, Clone)]
struct Part {
    name: &'static str,
    kind: EntryType,
    target: &'static str,
    body: Vec<u8>,
}

fn part() -> impl Strategy<Value = Part> {
    let kinds =
        vec![EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link, EntryType::Char];
    let body = proptest::collection::vec(any::<u8>(), 0..600);
    (select(NAMES.to_vec()), select(kinds), select(TARGETS.to_vec()), body)
        .prop_map(|(name, kind, target, body)| Part { name, kind, target, body })
}

/// The archive as bytes. Headers are filled by hand: no writer would let such names pass.
fn pack(parts: &[Part], outside: &Path) -> Vec<u8> {
    let full = |text: &str| text.replace("OUTSIDE", &outside.display().to_string());
    let mut bytes = Vec::new();
    for part in parts {
        let mut header = Header::new_gnu();
        let is_file = part.kind == EntryType::Regular;
        header.set_entry_type(part.kind);
        header.set_mode(0o6777);
        header.set_size(if is_file { part.body.len() as u64 } else { 0 });
        let old = header.as_old_mut();
        let (name, target) = (full(part.name), full(part.target));
        old.name[..name.len().min(99)].copy_from_slice(&name.as_bytes()[..name.len().min(99)]);
        old.linkname[..target.len().min(99)].copy_from_slice(&target.as_bytes()[..target.len().min(99)]);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        if is_file {
            bytes.extend_from_slice(&part.body);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// All entries below a directory, except those below `inside`, by path: mode, owner, length, links,
/// time.
fn snapshot_tree(dir: &Path, inside: &Path) -> BTreeMap<String, (u32, u32, u64, u64, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let (path, data) = (entry.path(), entry.path().symlink_metadata().unwrap());
            if path == inside {
                continue;
            }
            let seen = (data.mode(), data.uid(), data.len(), data.nlink(), data.mtime_nsec());
            found.insert(path.display().to_string(), seen);
            left.extend(data.is_dir().then_some(path));
        }
    }
    found
}

fn check(parts: &[Part], changes: &[(Index, u8)], piece: usize) -> Result<(), TestCaseError> {
    let root = tempfile::tempdir().unwrap();
    let (inside, outside) = (root.path().join("inside"), root.path().join("outside"));
    for dir in [&inside, &outside] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let before = snapshot_tree(root.path(), &inside);
    let mut bytes = pack(parts, &outside);
    for (at, with) in changes {
        let at = at.index(bytes.len());
        bytes[at] ^= with;
    }
    let path: RawPath = inside.as_os_str().as_bytes().to_vec().into();
    let mut sink = UnpackSink::new(path, None, root.path().to_owned());
    // The result does not matter here, nor where unpacking stopped.
    let _ = bytes.chunks(piece).try_for_each(|piece| sink.write(piece)).and_then(|()| sink.finish());
    prop_assert_eq!(before, snapshot_tree(root.path(), &inside));
    prop_assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    for (path, (mode, ..)) in snapshot_tree(&inside, Path::new("/")) {
        prop_assert!(mode & 0o6000 == 0, "{} has a set-id bit: {:o}", path, mode);
    }
    Ok(())
}

#[test]
fn unpacking_never_escapes_the_directory() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: unpacking_never_escapes_the_directory (files of the machine are root's)");
    }
    let parts = proptest::collection::vec(part(), 1..8);
    let changes = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ];
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config)
        .run(&(parts, changes, 1_usize..2000), |(parts, changes, piece)| check(&parts, &changes, piece));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
