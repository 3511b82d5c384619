//! The checks, in the order in which a start would stumble over them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pandastack_agent::cgroup::Cgroups;
use pandastack_engine::{Capabilities, Engine, kvm_probe};
use pandastack_engine_qemu::{QemuConfig, QemuEngine};
use pandastack_image::{Cloning, Store};

use super::Finding;
use crate::commands::host_packages;
use crate::output::size;
use crate::settings::Settings;

/// A working KVM needs milliseconds; a broken one may hang.
const KVM_PROBE: Duration = Duration::from_secs(5);
/// Below this, `code-interpreter` and a few sandboxes do not fit.
const MEMORY_BYTES_MIN: u64 = 2 << 30;
/// The two built-in templates with room for a few sandboxes.
const DISK_BYTES_MIN: u64 = 10 << 30;

/// Every check.
pub fn all(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![rights()];
    findings.extend(engine(&settings.data_dir));
    findings.push(programs());
    findings.push(store(&settings.data_dir));
    findings.push(cgroups());
    findings.extend(network());
    findings.push(memory());
    findings.push(disk(&settings.data_dir));
    findings
}

fn rights() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok("rights", "root");
    }
    Finding::fail("rights", "not root, so several checks below fail", "run `sudo pandastack doctor`")
}

/// The engine as an agent would open it: KVM by executing instructions, the fork by forking a real machine.
fn engine(data_dir: &Path) -> Vec<Finding> {
    let kvm = kvm_probe::probe_with(Path::new("/proc/self/exe"), KVM_PROBE);
    let first = if kvm.usable {
        Finding::ok("KVM", kvm.reason.clone())
    } else {
        let remedy =
            "machines are emulated: fine for development and CI, not for tenants who distrust each other";
        Finding::warn("KVM", kvm.reason.clone(), remedy)
    };
    let (library_dir, _scratch) = match library_dir(data_dir) {
        Ok(found) => found,
        Err(error) => return vec![first, Finding::fail("engine", error.to_string(), "check TMPDIR")],
    };
    let config = QemuConfig { binary: None, library_dir, kvm_usable: kvm.usable, kvm_reason: kvm.reason };
    let probed = crate::commands::block_on(async { Ok(QemuEngine::probe(config).await?) });
    let second = match probed {
        Err(error) => Finding::fail("engine", format!("{error:#}"), "install what it names, or run as root"),
        Ok(engine) => describe(engine.capabilities()),
    };
    vec![first, second]
}

/// Where the engine keeps its own files: the installation's, or a directory that is thrown away.
fn library_dir(data_dir: &Path) -> std::io::Result<(PathBuf, Option<tempfile::TempDir>)> {
    let installed = data_dir.join("lib");
    if installed.is_dir() {
        return Ok((installed, None));
    }
    let scratch = tempfile::tempdir()?;
    Ok((scratch.path().to_owned(), Some(scratch)))
}

fn describe(engine: &Capabilities) -> Finding {
    let found = format!("{}, isolation `{}`", engine.name, engine.isolation.as_str());
    match &engine.fork_reason {
        None => Finding::ok("engine", format!("{found}, machines can be forked")),
        Some(reason) => Finding::warn(
            "engine",
            format!("{found}, machines cannot be forked: {reason}"),
            "creates and forks restore snapshots instead, which is slower",
        ),
    }
}

/// One line, also when much is missing: the remedy is one command.
fn programs() -> Finding {
    let missing = host_packages::missing();
    if missing.is_empty() {
        return Finding::ok("programs", "everything that machines and template builds run is installed");
    }
    let programs: Vec<&str> = missing.values().flat_map(|lack| lack.programs.iter().copied()).collect();
    let needed_for: BTreeSet<&str> =
        missing.values().flat_map(|lack| lack.needed_for.iter().copied()).collect();
    let needed_for: Vec<&str> = needed_for.into_iter().collect();
    let detail = format!("missing: {}; needed for {}", programs.join(", "), needed_for.join(", "));
    Finding::fail("programs", detail, host_packages::install_command(&missing))
}

fn store(data_dir: &Path) -> Finding {
    let name = "store";
    let (cloning, place) = match probe_store(data_dir) {
        Ok(found) => found,
        Err(detail) => return Finding::fail(name, detail, "see docs/operations.md, Data directory"),
    };
    match cloning {
        Cloning::Reflink => Finding::ok(name, format!("{place} clones files by reflink")),
        Cloning::ReflinkInLoop { reason } => {
            Finding::ok(name, format!("{place} gets a reflink file system in an image file ({reason})"))
        }
        Cloning::SparseCopy { reason } => Finding::warn(
            name,
            format!("files are copied, not cloned: {reason}"),
            "creates are slower and disks larger; put the data directory on XFS (reflink=1) or Btrfs",
        ),
    }
}

/// Opens the store where there is one; else tries one out in a directory that is thrown away.
fn probe_store(data_dir: &Path) -> Result<(Cloning, String), String> {
    let place = data_dir.display().to_string();
    if data_dir.join("store").exists() {
        let store = Store::open(data_dir).map_err(|error| error.to_string())?;
        return Ok((store.cloning().clone(), place));
    }
    let parent = data_dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let dir = tempfile::Builder::new().prefix(".pandastack-doctor-").tempdir_in(parent);
    let dir = dir.map_err(|error| format!("cannot write to {}: {error}", parent.display()))?;
    let store = Store::open(dir.path()).map_err(|error| error.to_string())?;
    let cloning = store.cloning().clone();
    store.unmount().map_err(|error| error.to_string())?;
    Ok((cloning, place))
}

fn cgroups() -> Finding {
    match Cgroups::open("doctor") {
        Ok(cgroups) => {
            let detail = cgroups.describe();
            cgroups.remove();
            Finding::ok("control groups", detail)
        }
        Err(error) => Finding::fail(
            "control groups",
            error.to_string(),
            "run as root on a host that mounts cgroup v2 (or the v1 controllers cpu, memory and pids)",
        ),
    }
}

fn network() -> impl Iterator<Item = Finding> {
    pandastack_net::probe().into_iter().map(|check| match check.remedy {
        None => Finding::ok(check.name, check.detail),
        Some(remedy) => Finding::fail(check.name, check.detail, remedy),
    })
}

fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = kib.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    match kib.map(|kib| kib * 1024) {
        Some(bytes) if bytes >= MEMORY_BYTES_MIN => {
            Finding::ok("memory", format!("{} available", size(bytes)))
        }
        Some(bytes) => Finding::warn(
            "memory",
            format!("only {} available", size(bytes)),
            format!("{} or more is comfortable", size(MEMORY_BYTES_MIN)),
        ),
        None => Finding::warn("memory", "cannot read /proc/meminfo", "mount /proc"),
    }
}

fn disk(data_dir: &Path) -> Finding {
    let place = data_dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let space = match rustix::fs::statvfs(place) {
        Ok(space) => space.f_bavail * space.f_frsize,
        Err(error) => {
            return Finding::fail("disk", format!("{}: {error}", place.display()), "check --data-dir");
        }
    };
    let found = format!("{} free in {}", size(space), place.display());
    if space >= DISK_BYTES_MIN {
        return Finding::ok("disk", found);
    }
    Finding::warn(
        "disk",
        found,
        format!("{} or more is comfortable; --data-dir moves it", size(DISK_BYTES_MIN)),
    )
}
