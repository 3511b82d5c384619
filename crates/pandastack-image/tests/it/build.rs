//! Builds on a real host, with the smallest Debian there is.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pandastack_image::lock::Pin;
use pandastack_image::{ErrorKind, ImageBuilder, Lock, Locking, Phase, Recipe};

use crate::{require_host, traces_of};

/// Longest time for a build to start installing, and for the kernel to clean up after a killed one.
const CONDITION_MAX: Duration = Duration::from_secs(120);

const TINY: &str = r#"
name = "tiny"
description = "as little as possible"
category = "test"
cpu = 1
memory_mib = 256
disk_gib = 1
from = { debian = "trixie" }
run = ["echo made > /made"]
verify = ["test -s /made", "test ! -e /sys/class/net/eth0"]
[debian]
packages = []
exclude = ["/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*"]
"#;

const CHILD: &str = r#"
name = "child"
description = "one package more, on a larger disk"
category = "test"
cpu = 1
memory_mib = 256
disk_gib = 2
from = { template = "tiny" }
verify = ["test -s /made", "hello | grep -q world", "test ! -e /etc/apt/preferences.d/pandastack-lock"]
[debian]
packages = ["hello"]
"#;

fn recipe(text: &str, lock: Lock) -> Recipe {
    Recipe::parse(text, lock).unwrap()
}

fn entries(dir: &Path) -> Vec<String> {
    let Ok(listing) = std::fs::read_dir(dir) else { return Vec::new() };
    listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// One long test: the parts share the same minute of installing.
#[test]
fn an_image_is_built_once_extended_and_lock_checked() {
    require_host!("an_image_is_built_once_extended_and_lock_checked");
    let cache = tempfile::tempdir().unwrap();
    let mut lock = Lock::default();
    let gone = Pin { version: "0.0-gone".into(), sha256: "00".into() };
    lock.debian.insert("base-files".into(), gone);
    let tiny = recipe(TINY, lock);
    let builder = ImageBuilder::new(cache.path());
    assert!(builder.cached(&tiny).unwrap().is_none());

    // Two callers at once share one build.
    let installs = Mutex::new(0);
    let count = |step: pandastack_image::Progress<'_>| {
        if step.phase == Phase::Debian {
            *installs.lock().unwrap() += 1;
        }
    };
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| builder.ensure(&tiny, &count));
        (builder.ensure(&tiny, &count).unwrap(), other.join().unwrap().unwrap())
    });
    assert_eq!((one.path.clone(), *installs.lock().unwrap()), (two.path, 1));
    assert!(entries(&cache.path().join("work")).is_empty());
    assert!(traces_of(cache.path()).is_empty(), "{:?}", traces_of(cache.path()));

    // A version that the mirror lacks gives way to the current one, by name.
    let drifted: HashSet<&str> =
        one.manifest.drifted.iter().filter_map(|change| change.split(' ').next()).collect();
    assert!(drifted.contains("base-files"), "{drifted:?}");
    assert!(one.manifest.drifted.iter().any(|change| change.starts_with("base-files 0.0-gone -> ")));
    assert_eq!(one.manifest.debian["base-files"].sha256.len(), 64);

    // A child is the parent's tree, larger, with its packages.
    let child = recipe(CHILD, Lock::default());
    let builder = builder.parents(vec![tiny.clone()]);
    let built = builder.ensure(&child, &count).unwrap();
    assert_eq!(std::fs::metadata(&built.path).unwrap().len(), 2 << 30);
    assert_eq!(built.manifest.debian.keys().collect::<Vec<_>>(), ["hello"]);
    assert_eq!(built.manifest.parent.as_deref(), Some(one.key.as_str()));
    assert_eq!(*installs.lock().unwrap(), 2, "the parent was built again");

    // If exactly the lock is required, the same drift is an error, and nothing is left behind.
    let changed = Recipe { run: vec!["true".into()], ..child.clone() };
    let error = builder.clone().locking(Locking::Strict).ensure(&changed, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lock, "{error}");
    assert!(builder.cached(&changed).unwrap().is_none());

    // A promise that does not hold fails the build with the command that showed it.
    let broken = Recipe { verify: vec!["echo it is broken >&2; false".into()], ..child };
    let error = builder.ensure(&broken, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("it is broken"), "{error}");
    assert!(entries(&cache.path().join("work")).is_empty());
    assert_eq!(entries(&cache.path().join("images")).len(), 4);
    assert!(traces_of(cache.path()).is_empty(), "{:?}", traces_of(cache.path()));
}

#[test]
fn a_killed_build_leaves_no_mount_and_no_process() {
    require_host!("a_killed_build_leaves_no_mount_and_no_process");
    let cache = tempfile::tempdir().unwrap();
    // This same test program; the environment makes it build until it is killed.
    let mut build = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "build::build_for_ever", "--ignored", "--nocapture"])
        .env("PANDASTACK_CACHE_DIR", cache.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // mmdebstrap is a Perl program; the moment to kill is when it runs, not when it is about to be started.
    let installing = || processes_in(cache.path()).iter().any(|line| line.contains("perl"));
    wait_until("the build never began to install", installing);
    build.kill().unwrap();
    build.wait().unwrap();
    // The kernel tears a killed process tree and its mounts down behind our back.
    let left = || [traces_of(cache.path()), processes_in(cache.path())].concat();
    wait_until("mounts or processes are left", || left().is_empty());
    assert!(entries(&cache.path().join("images")).is_empty());
}

#[test]
#[ignore = "run by a_killed_build_leaves_no_mount_and_no_process"]
fn build_for_ever() {
    if std::env::var_os("PANDASTACK_CACHE_DIR").is_none() {
        return;
    }
    let builder = ImageBuilder::new(pandastack_image::default_cache_dir());
    let _ = builder.ensure(&recipe(TINY, Lock::default()), &|_| {});
}

pub(crate) fn wait_until(complaint: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + CONDITION_MAX;
    while !condition() {
        assert!(Instant::now() < deadline, "{complaint}");
        #[expect(clippy::disallowed_methods, reason = "a test; any condition")]
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Command lines of live processes that mention `path`.
fn processes_in(path: &Path) -> Vec<String> {
    let needle = path.display().to_string();
    let command_line = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline")).ok();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| command_line(entry.ok()?));
    all.filter(|line| line.contains(&needle)).collect()
}
