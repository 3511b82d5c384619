//! The checks, in the order in which `up` depends on them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pandastack_agent::cgroup::Cgroups;
use pandastack_agent::engine_choice::{ChosenEngine, EngineKind, EngineSearch};
use pandastack_control::AdvisoryFile;
use pandastack_engine::kvm_probe;
use pandastack_image::{Cloning, Store};
use pandastack_types::chain;

use super::finding::Finding;
use crate::commands::host_packages;
use crate::commands::runtime::block_on;
use crate::output::size;
use crate::settings::Settings;

/// Minimum memory for `code-interpreter` and a few sandboxes.
const MEMORY_BYTES_MIN: u64 = 2 << 30;
/// Minimum disk space for the two built-in templates and a few sandboxes.
const DISK_BYTES_MIN: u64 = 10 << 30;

/// Runs every check.
pub fn all(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![privileges()];
    findings.extend(engine(settings));
    findings.push(programs());
    findings.push(store(&settings.data_dir));
    findings.push(cgroups());
    findings.extend(network());
    findings.push(memory());
    findings.push(disk(&settings.data_dir));
    findings.extend(settings.frozen.advisories.as_deref().map(advisories));
    findings
}

/// Whether the server will start with these advisories.
fn advisories(path: &Path) -> Finding {
    match AdvisoryFile::open(path) {
        Ok(file) => Finding::ok("advisories", format!("{} in {}", file.current().len(), path.display())),
        Err(error) => Finding::fail("advisories", chain(&error), "correct the file, or unset `advisories`"),
    }
}

fn privileges() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok("privileges", "root");
    }
    Finding::fail(
        "privileges",
        "not running as root; some checks below will fail",
        "run `sudo pandastack doctor`",
    )
}

/// Probes the engine as an agent does: executes instructions with KVM and forks a real machine.
fn engine(settings: &Settings) -> Vec<Finding> {
    let kvm = kvm_probe::probe_with(Path::new("/proc/self/exe"), kvm_probe::PROBE_DEADLINE);
    let first = if kvm.usable {
        Finding::ok("KVM", kvm.reason.clone())
    } else {
        let remedy =
            "sandboxes are emulated: suitable for development and CI, not for isolating untrusted tenants";
        Finding::warn("KVM", kvm.reason.clone(), remedy)
    };
    let (library_dir, _scratch) = match library_dir(&settings.data_dir) {
        Ok(found) => found,
        Err(error) => {
            return vec![first, Finding::fail("engine", chain(&error), "set TMPDIR to a writable directory")];
        }
    };
    let data_dir = settings.data_dir.as_path();
    let search = EngineSearch {
        choice: settings.engine.into(),
        kvm,
        data_dir,
        library_dir,
        in_use: EngineKind::in_use(data_dir),
    };
    let second = match block_on(search.choose()) {
        Err(error) => {
            Finding::fail("engine", format!("{error:#}"), "install the missing programs, or run as root")
        }
        Ok(chosen) => describe(&chosen),
    };
    vec![first, second]
}

/// Directory for the engine's files: the installation's, or a temporary one.
fn library_dir(data_dir: &Path) -> std::io::Result<(PathBuf, Option<tempfile::TempDir>)> {
    let installed = data_dir.join("lib");
    if installed.is_dir() {
        return Ok((installed, None));
    }
    let scratch = tempfile::tempdir()?;
    Ok((scratch.path().to_owned(), Some(scratch)))
}

/// The engine, why it was chosen, and what it cannot do.
fn describe(chosen: &ChosenEngine) -> Finding {
    let engine = chosen.engine.capabilities();
    let found = format!("{}, isolation `{}` ({})", engine.name, engine.isolation.as_str(), chosen.reason);
    match &engine.fork_reason {
        None => Finding::ok("engine", format!("{found}, supports forking")),
        Some(reason) => Finding::warn(
            "engine",
            format!("{found}, forking is unavailable: {reason}"),
            "sandboxes are created and forked from snapshots instead, which is slower",
        ),
    }
}

/// One finding for all missing programs: one command installs them.
fn programs() -> Finding {
    let missing = host_packages::missing();
    if missing.is_empty() {
        let builds = host_packages::missing_for_builds();
        if builds.is_empty() {
            return Finding::ok("programs", "all required programs are installed");
        }
        let detail = "prebuilt templates work; building others needs more programs";
        return Finding::warn("programs", detail, host_packages::install_command(&builds));
    }
    let programs: Vec<&str> = missing.values().flat_map(|package| package.programs.iter().copied()).collect();
    let needed_for: BTreeSet<&str> =
        missing.values().flat_map(|package| package.needed_for.iter().copied()).collect();
    let needed_for: Vec<&str> = needed_for.into_iter().collect();
    let detail = format!("missing: {}; needed for {}", programs.join(", "), needed_for.join(", "));
    Finding::fail("programs", detail, host_packages::install_command(&missing))
}

fn store(data_dir: &Path) -> Finding {
    let name = "store";
    let (cloning, place) = match probe_store(data_dir) {
        Ok(found) => found,
        Err(detail) => {
            return Finding::fail(name, detail, "see \"Data directory\" in docs/reference/configuration.md");
        }
    };
    match cloning {
        Cloning::Reflink => Finding::ok(name, format!("{place} supports reflinks")),
        Cloning::ReflinkInLoop { reason } => {
            Finding::ok(name, format!("{place} uses an XFS image file for reflinks ({reason})"))
        }
        Cloning::SparseCopy { reason } => Finding::warn(
            name,
            format!("files are copied instead of cloned: {reason}"),
            "for faster creation and less disk usage, put the data directory on XFS (reflink=1) or Btrfs",
        ),
    }
}

/// Opens the existing store, or creates one in a temporary directory.
fn probe_store(data_dir: &Path) -> Result<(Cloning, String), String> {
    let place = data_dir.display().to_string();
    if data_dir.join("store").exists() {
        let store = Store::open(data_dir).map_err(|error| chain(&error))?;
        return Ok((store.cloning().clone(), place));
    }
    let parent = data_dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let dir = tempfile::Builder::new().prefix(".pandastack-doctor-").tempdir_in(parent);
    let dir = dir.map_err(|error| format!("cannot write to {}: {error}", parent.display()))?;
    let store = Store::open(dir.path()).map_err(|error| chain(&error))?;
    let cloning = store.cloning().clone();
    store.unmount().map_err(|error| chain(&error))?;
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
            chain(&error),
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
            format!("{} or more is recommended", size(MEMORY_BYTES_MIN)),
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
        format!("{} or more is recommended; use --data-dir for another disk", size(DISK_BYTES_MIN)),
    )
}
