//! Probes the host: which emulator it has, and whether its processes can be forked.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pandastack_engine::host;
use pandastack_engine::{Confinement, EngineError, Machine, MachineFiles, Result, Shape};
use pandastack_types::chain;

use crate::accelerator::Accelerator;
use crate::command_line::{DEVICES_GENERATION, Origin};
use crate::host::Host;
use crate::library::Library;
use crate::start::{self, Start};

/// Name of the emulator on the path.
const BINARY_NAME: &str = "qemu-system-x86_64";
/// Oldest emulator with the machine type that snapshots are made with.
const VERSION_MIN: (u32, u32) = (7, 2);
/// Stored result of a fork test that passed.
const PASSED: &str = "ok";
/// The fork test needs no memory to speak of.
const TEST_SHAPE: Shape = Shape { vcpus: 1, memory_mib: 32 };
/// User of the test's child: `nobody`, to see that the user changes.
const TEST_USER: u32 = 65_534;

/// The emulator found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Emulator {
    pub(crate) binary: PathBuf,
    /// First line of its version output.
    pub(crate) version: String,
    numbers: (u32, u32),
}

impl Emulator {
    /// Such as `QEMU 7.2`. Every build of a series loads the states that other builds of it saved,
    /// as long as the machine type has a version: so a package update does not affect sleeping
    /// sandboxes and snapshots.
    pub(crate) fn series(&self) -> String {
        let (major, minor) = self.numbers;
        format!("QEMU {major}.{minor}")
    }

    /// Such as `7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
    pub(crate) fn number(&self) -> &str {
        self.version.split_once("version ").map_or(self.version.as_str(), |(_, number)| number)
    }
}

/// Finds the emulator and its version.
pub(crate) fn find_emulator(configured: Option<PathBuf>) -> Result<Emulator> {
    let missing = || {
        EngineError::Unavailable(format!(
            "{BINARY_NAME} is not installed: install the package qemu-system-x86"
        ))
    };
    let binary = match configured {
        Some(binary) => binary,
        None => host::program_on_path(BINARY_NAME).ok_or_else(missing)?,
    };
    let output = Command::new(&binary).arg("--version").output();
    let output = output.map_err(EngineError::io("run the emulator", &binary))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().trim().to_owned();
    match parse_version(&version) {
        Some(numbers) if numbers >= VERSION_MIN => Ok(Emulator { binary, version, numbers }),
        _ => Err(EngineError::Unavailable(format!(
            "{} is {version:?}, but QEMU {}.{} or newer is needed",
            binary.display(),
            VERSION_MIN.0,
            VERSION_MIN.1
        ))),
    }
}

/// Major and minor number in `QEMU emulator version 7.2.22 (Debian ...)`.
fn parse_version(line: &str) -> Option<(u32, u32)> {
    let numbers = line.split_once("version ")?.1;
    let mut numbers = numbers.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A snapshot loads only where this is equal.
pub(crate) fn compatibility_key(emulator: &str, accelerator: &Accelerator) -> String {
    let processor = if accelerator.host_processor { host::processor() } else { String::new() };
    [
        accelerator.name,
        emulator,
        accelerator.machine,
        accelerator.processor,
        &format!("devices {DEVICES_GENERATION}"),
        &processor,
    ]
    .join("; ")
}

/// Tests whether forking works: forks a small stopped machine, once per emulator, C library and
/// preloaded library. Returns `None` if it does, otherwise the reason.
pub(crate) async fn fork_obstacle(host: &Arc<Host>, emulator: &Emulator) -> Option<String> {
    if !host.accelerator.can_fork() {
        return Some("machines run on KVM, whose descriptors belong to one process".to_owned());
    }
    let key = fork_test_key(&host.library, emulator);
    if host.library.verdict(&key).is_some_and(|verdict| verdict == PASSED) {
        return None;
    }
    match fork_test(host).await {
        Ok(()) => {
            host.library.keep_verdict(&key, PASSED);
            None
        }
        // Not stored: the cause may be gone at the next start.
        Err(error) => Some(format!("the fork test failed: {}", chain(&error))),
    }
}

/// Everything the outcome depends on: builds of emulator and C library, the kernel, and the preloaded library.
fn fork_test_key(library: &Library, emulator: &Emulator) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let identity = |path: &Path| {
        fs::metadata(path)
            .map_or(String::new(), |file| format!("{} {} {}", path.display(), file.len(), file.mtime()))
    };
    let c_library = on_loader_path("libc.so.6").map_or(String::new(), |path| identity(&path));
    [library.hash.as_str(), &identity(&emulator.binary), &emulator.version, &c_library, kernel.trim()]
        .join("\n")
}

fn on_loader_path(name: &str) -> Option<PathBuf> {
    const DIRECTORIES: [&str; 4] =
        ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"];
    DIRECTORIES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
}

async fn fork_test(host: &Arc<Host>) -> Result<()> {
    let dir = host.library.scratch();
    fs::create_dir_all(&dir).map_err(EngineError::io("create a directory for the fork test", &dir))?;
    let outcome = fork_in(host, &dir).await;
    if let Err(error) = fs::remove_dir_all(&dir) {
        tracing::warn!(
            path = %dir.display(), error = %chain(&error),
            "cannot remove the directory of the fork test"
        );
    }
    outcome
}

async fn fork_in(host: &Arc<Host>, dir: &Path) -> Result<()> {
    let memory = dir.join("ram");
    let file = fs::File::create(&memory).and_then(|file| file.set_len(TEST_SHAPE.memory_bytes()));
    file.map_err(EngineError::io("create a memory file for the fork test", &memory))?;
    let place = test_place(dir, "parent", Confinement::Zygote)?;
    let start = Start { shape: TEST_SHAPE, place, memory, origin: Origin::Empty, state: None };
    let parent = start::start(host.clone(), start).await?;
    let outcome = fork_twice(&*parent, dir).await;
    parent.kill().await?;
    outcome
}

/// A child of another user, and a child of that child.
async fn fork_twice(parent: &dyn Machine, dir: &Path) -> Result<()> {
    let user = Confinement::Full { uid: TEST_USER, gid: TEST_USER };
    let child = fork_once(parent, test_place(dir, "child", user)?).await?;
    let grandchild = match test_place(dir, "grandchild", user) {
        Ok(place) => fork_once(&*child, place).await,
        Err(error) => Err(error),
    };
    child.kill().await?;
    grandchild?.kill().await
}

async fn fork_once(parent: &dyn Machine, place: MachineFiles) -> Result<Arc<dyn Machine>> {
    let nothing = || EngineError::Vmm { step: "testing the fork", detail: "no child".to_owned() };
    parent.fork(vec![place]).await?.pop().unwrap_or_else(|| Err(nothing()))
}

fn test_place(dir: &Path, name: &str, confinement: Confinement) -> Result<MachineFiles> {
    let runtime_dir = dir.join(name);
    fs::create_dir(&runtime_dir)
        .map_err(EngineError::io("create a directory for the fork test", &runtime_dir))?;
    let disk = runtime_dir.join("disk");
    let file = fs::File::create(&disk).and_then(|file| file.set_len(1 << 20));
    file.map_err(EngineError::io("create a disk for the fork test", &disk))?;
    Ok(MachineFiles {
        console: runtime_dir.join("console"),
        runtime_dir,
        disk,
        volumes: Vec::new(),
        tap: None,
        confinement,
        spare: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_versions_are_parsed_from_its_output() {
        for (line, expected) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", Some((7, 2))),
            ("QEMU emulator version 10.0.2", Some((10, 0))),
            ("something else", None),
            ("", None),
        ] {
            assert_eq!(parse_version(line), expected, "{line}");
        }
        assert!((10, 0) >= VERSION_MIN && (6, 9) < VERSION_MIN);
    }

    #[test]
    fn only_a_qemu_series_change_invalidates_snapshots() {
        let key = |version: &str| {
            let (binary, numbers) = (PathBuf::from("/qemu"), parse_version(version).unwrap());
            let emulator = Emulator { binary, version: version.to_owned(), numbers };
            compatibility_key(&emulator.series(), &Accelerator::TCG)
        };
        let saved = key("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)");
        let (binary, numbers) = (PathBuf::from("/qemu"), (7, 2));
        let version = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)".to_owned();
        assert_eq!(Emulator { binary, version, numbers }.number(), "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)");
        assert_eq!(saved, key("QEMU emulator version 7.2.23 (Debian 1:7.2+dfsg-7+deb12u19)"));
        assert_ne!(saved, key("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)"));
    }
}
