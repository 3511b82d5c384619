//! Checks of a production host: `pandastack doctor --production`.
//!
//! Each check is one row of `docs/how-to/production-host.md`, under the same name. Checks read files of
//! `/proc` and `/sys` below a root directory, so tests can show them any host.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// Minimum entries of the neighbour table before old ones are dropped; a host has one for each slot.
const NEIGHBOURS_MIN: u64 = 16_384;
/// Minimum process ids: each machine has about ten threads.
const PIDS_MIN: u64 = 131_072;
/// Minimum open files: each machine has about a hundred, and each connection has one.
const FILES_MIN: u64 = 1 << 20;
/// Minimum inotify instances: the agent has one for each machine that starts.
const INOTIFY_MIN: u64 = 1_024;
/// Maximum mounts: starting a jailed process copies the mount table.
const MOUNTS_MAX: usize = 200;

/// The host as its files show it.
#[derive(Debug)]
pub struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    /// The host that this program runs on.
    pub fn real() -> Self {
        Self { root: PathBuf::from("/") }
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }
}

/// Runs every check. `data_dir` is where machines will be.
pub fn all(host: &HostFiles, data_dir: &Path) -> Vec<Finding> {
    let mut findings = vec![
        virtualization(host),
        smt(host),
        vulnerabilities(host),
        microcode(host),
        ksm(host),
        swap(host),
        huge_pages(host),
        nested(host),
        cgroups(host),
        mounts(host),
        file_system(host, data_dir),
        disk_kind(host, data_dir),
        console(host),
        clock(host),
    ];
    findings.extend(limits(host));
    findings
}

/// The user of the control server, which is the owner of its socket.
pub fn service_user(socket: &Path) -> Finding {
    let name = "service user";
    match fs::metadata(socket).map(|found| std::os::unix::fs::MetadataExt::uid(&found)) {
        Ok(0) => Finding::fail(
            name,
            "the control server runs as root",
            "look for `runs as root` in logs/control.log for the reason, and do not set --run-as root",
        ),
        Ok(uid) => Finding::ok(name, format!("the control server runs as user {uid}")),
        Err(_) => Finding::ok(name, "no control server is running"),
    }
}

fn virtualization(host: &HostFiles) -> Finding {
    let name = "virtualization";
    let flags = host.read("proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    if !host.root.join("dev/kvm").exists() {
        let remedy = "enable virtualization in the firmware, or use a metal instance; then load `kvm_intel` \
                      or `kvm_amd`";
        return Finding::fail(name, "there is no /dev/kvm", remedy);
    }
    if has("hypervisor") {
        let remedy = "use a host that is not itself a virtual machine: nested guests are slower, and rest on \
                      two hypervisors";
        return Finding::warn(name, "this host is a virtual machine", remedy);
    }
    match (has("vmx"), has("svm")) {
        (false, false) => Finding::fail(
            name,
            "the processor reports neither VT-x nor AMD-V",
            "enable virtualization in the firmware",
        ),
        (true, _) => Finding::ok(name, "Intel VT-x, on the hardware itself"),
        (_, true) => Finding::ok(name, "AMD-V, on the hardware itself"),
    }
}

fn smt(host: &HostFiles) -> Finding {
    let name = "SMT";
    match host.read("sys/devices/system/cpu/smt/active").as_deref() {
        Some("0") => Finding::ok(name, "off: tenants never share a core"),
        Some("1") => Finding::warn(
            name,
            "on: two tenants can share a core and observe each other through side channels",
            "boot with `nosmt`, or run `echo off > /sys/devices/system/cpu/smt/control`; keep it on only for a \
             single tenant",
        ),
        _ => Finding::warn(name, "the kernel does not report whether SMT is on", "look at `lscpu`"),
    }
}

fn vulnerabilities(host: &HostFiles) -> Finding {
    let name = "side channels";
    let dir = host.root.join("sys/devices/system/cpu/vulnerabilities");
    let Ok(entries) = fs::read_dir(&dir) else {
        return Finding::warn(name, "the kernel does not list vulnerabilities", "use Linux 5.10 or newer");
    };
    let mut open: Vec<String> = entries
        .flatten()
        .filter(|entry| fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("Vulnerable")))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    open.sort();
    if open.is_empty() {
        return Finding::ok(name, "all known vulnerabilities are mitigated or do not affect this processor");
    }
    Finding::fail(
        name,
        format!("not mitigated: {}", open.join(", ")),
        "install the newest microcode and kernel, and do not boot with `mitigations=off`",
    )
}

fn microcode(host: &HostFiles) -> Finding {
    let name = "microcode";
    let text = host.read("proc/cpuinfo").unwrap_or_default();
    let revision = text.lines().find_map(|line| line.strip_prefix("microcode")?.split(':').nth(1));
    match revision.map(str::trim) {
        Some(revision) if revision != "0x0" && revision != "0xffffffff" => {
            Finding::ok(name, format!("revision {revision}; compare it with the vendor's latest"))
        }
        _ => Finding::warn(
            name,
            "the processor reports no microcode revision",
            "install `intel-microcode` or `amd64-microcode`",
        ),
    }
}

fn ksm(host: &HostFiles) -> Finding {
    let name = "KSM";
    match host.read("sys/kernel/mm/ksm/run").as_deref() {
        None => Finding::ok(name, "not in this kernel"),
        Some("0") => Finding::ok(name, "off"),
        Some(_) => Finding::fail(
            name,
            "the kernel merges identical pages, which lets one tenant probe the memory of another",
            "run `echo 2 > /sys/kernel/mm/ksm/run`, and disable `ksmtuned`",
        ),
    }
}

fn swap(host: &HostFiles) -> Finding {
    let name = "swap";
    let areas = host.read("proc/swaps").map_or(0, |text| text.lines().skip(1).count());
    if areas == 0 {
        return Finding::ok(name, "off");
    }
    Finding::fail(
        name,
        "memory of sandboxes can be swapped to disk and stay there after they are deleted",
        "run `swapoff -a`, and remove the swap areas from /etc/fstab",
    )
}

fn huge_pages(host: &HostFiles) -> Finding {
    let name = "huge pages";
    let reserved = host.number("proc/sys/vm/nr_hugepages").unwrap_or(0);
    if reserved > 0 {
        return Finding::warn(
            name,
            format!("{reserved} huge pages are reserved, and sandboxes cannot use them"),
            "run `sysctl vm.nr_hugepages=0`; memory of sandboxes is mapped from files in small pages",
        );
    }
    let chosen = host.read("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if chosen.contains("[always]") {
        return Finding::warn(
            name,
            "transparent huge pages are always on: writing one byte can use 2 MiB",
            "run `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        );
    }
    Finding::ok(name, "none reserved; transparent huge pages only on request")
}

fn nested(host: &HostFiles) -> Finding {
    let name = "nested virtualization";
    let on = ["kvm_intel", "kvm_amd"].into_iter().find(|module| {
        let value = host.read(&format!("sys/module/{module}/parameters/nested"));
        value.is_some_and(|value| value == "Y" || value == "1")
    });
    match on {
        None => Finding::ok(name, "off"),
        Some(module) => Finding::warn(
            name,
            format!(
                "{module} exposes nested virtualization to guests, which do not need it and could attack it"
            ),
            format!("set `options {module} nested=0` in /etc/modprobe.d, and reload the module"),
        ),
    }
}

fn cgroups(host: &HostFiles) -> Finding {
    let name = "cgroups";
    let mounts = host.read("proc/mounts").unwrap_or_default();
    let unified = mounts.lines().find(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some("/sys/fs/cgroup") && words.next() == Some("cgroup2")
    });
    let Some(unified) = unified else {
        return Finding::warn(
            name,
            "cgroup v1: limits are looser, and a process cannot start inside its group",
            "boot with `systemd.unified_cgroup_hierarchy=1`",
        );
    };
    if unified.contains("favordynmods") {
        return Finding::ok(name, "cgroup v2, mounted with favordynmods");
    }
    Finding::warn(
        name,
        "cgroup v2 without favordynmods: moving a machine into its cgroup waits for an RCU grace period",
        "run `mount -o remount,favordynmods /sys/fs/cgroup` (Linux 6.0 or newer), or boot with \
         `cgroup_favordynmods=1`",
    )
}

fn mounts(host: &HostFiles) -> Finding {
    let count = host.read("proc/mounts").map_or(0, |text| text.lines().count());
    if count <= MOUNTS_MAX {
        return Finding::ok("mounts", format!("{count} mounts"));
    }
    Finding::warn(
        "mounts",
        format!("{count} mounts: each machine starts with a copy of the mount table"),
        format!("keep them below {MOUNTS_MAX}; do not run containers on the same host"),
    )
}

/// The mount that a path is on, as its words in `/proc/mounts`.
fn mount_of(host: &HostFiles, path: &Path) -> Option<Vec<String>> {
    let text = host.read("proc/mounts")?;
    let words = |line: &str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mounts = text.lines().map(words);
    let around = mounts.filter(|words| words.len() >= 4 && path.starts_with(&words[1]));
    // Of two at the same place, the later covers the earlier.
    around.reduce(|found, next| if next[1].len() >= found[1].len() { next } else { found })
}

fn file_system(host: &HostFiles, data_dir: &Path) -> Finding {
    let name = "file system";
    // A store in an image file beside it is mounted inside.
    let store = data_dir.join("store");
    let Some(mount) = mount_of(host, data_dir) else {
        return Finding::warn(name, "cannot read /proc/mounts", "mount /proc");
    };
    if mount_of(host, &store).is_some_and(|inner| inner[0].starts_with("/dev/loop")) {
        return Finding::warn(
            name,
            "the store is an image file on another file system: every write goes through two file systems",
            "make the data directory's file system XFS with `mkfs.xfs -m reflink=1`",
        );
    }
    match mount[2].as_str() {
        "xfs" => Finding::ok(name, format!("{} is on XFS", data_dir.display())),
        kind => Finding::warn(
            name,
            format!("{} is on {kind}", data_dir.display()),
            "use XFS with `mkfs.xfs -m reflink=1`, on a dedicated disk",
        ),
    }
}

fn disk_kind(host: &HostFiles, data_dir: &Path) -> Finding {
    let name = "data disk";
    let device = mount_of(host, data_dir).and_then(|words| words[0].strip_prefix("/dev/").map(str::to_owned));
    let Some(device) = device else {
        return Finding::warn(name, "the data directory is not on a local disk", "use a local NVMe disk");
    };
    if device.starts_with("nvme") {
        return Finding::ok(name, format!("NVMe ({device})"));
    }
    let disk = device.trim_end_matches(|letter: char| letter.is_ascii_digit());
    match host.read(&format!("sys/block/{disk}/queue/rotational")).as_deref() {
        // Virtual disks always report that they rotate.
        Some("1") if disk.starts_with("sd") => Finding::fail(
            name,
            format!("{device} is a rotating disk: a snapshot is acknowledged only after it is fully written"),
            "use a local NVMe disk",
        ),
        _ => Finding::warn(name, format!("{device} is not NVMe"), "use a local NVMe disk"),
    }
}

fn console(host: &HostFiles) -> Finding {
    let name = "kernel console";
    let level = host.read("proc/sys/kernel/printk");
    let level = level.and_then(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok());
    match level {
        Some(level) if level <= 4 => Finding::ok(name, format!("prints messages up to level {level}")),
        _ => Finding::warn(
            name,
            "the kernel prints messages about guests to the console, which blocks a CPU meanwhile",
            "boot with `quiet loglevel=1`, or run `dmesg -n 1`",
        ),
    }
}

fn clock(host: &HostFiles) -> Finding {
    let name = "clock source";
    match host.read("sys/devices/system/clocksource/clocksource0/current_clocksource").as_deref() {
        Some("tsc") => Finding::ok(name, "tsc"),
        Some(other) => Finding::warn(
            name,
            format!("{other}: reading the time is slow, also in guests"),
            "run `dmesg` to find out why the kernel does not trust the TSC",
        ),
        None => Finding::warn(name, "the kernel reports no clock source", "mount /sys"),
    }
}

/// Kernel parameters with a lowest value.
const LIMITS: [(&str, &str, u64); 5] = [
    ("net.ipv4.neigh.default.gc_thresh3", "proc/sys/net/ipv4/neigh/default/gc_thresh3", NEIGHBOURS_MIN),
    ("kernel.pid_max", "proc/sys/kernel/pid_max", PIDS_MIN),
    ("fs.file-max", "proc/sys/fs/file-max", FILES_MIN),
    ("fs.inotify.max_user_instances", "proc/sys/fs/inotify/max_user_instances", INOTIFY_MIN),
    ("net.ipv4.ip_forward", "proc/sys/net/ipv4/ip_forward", 1),
];

fn limits(host: &HostFiles) -> impl Iterator<Item = Finding> + '_ {
    LIMITS.into_iter().map(|(name, path, least)| match host.number(path) {
        Some(value) if value >= least => Finding::ok(name, value.to_string()),
        Some(value) => Finding::warn(
            name,
            format!("{value}; a full host needs {least}"),
            format!("run `sysctl -w {name}={least}`, and add it to /etc/sysctl.d"),
        ),
        None => Finding::warn(name, "not in this kernel", "use a kernel with networking"),
    })
}

#[cfg(test)]
mod tests;
