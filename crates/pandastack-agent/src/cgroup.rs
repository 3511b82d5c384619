//! A control group per machine, on cgroup v2 or on the v1 controllers of older hosts.
//!
//! Plain file writes. The groups of one agent are children of one parent, so that whatever an interrupted create left
//! behind is found there ([`Cgroups::end_outside`]).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pandastack_engine::Shape;
use pandastack_types::chain;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// Memory an emulator may use beyond the guest's own: translation cache, device state, stacks.
const OVERHEAD_MIB: u64 = 512;
/// Threads in one machine's group. A machine has about six, but the children of a fork begin in their parent's group.
const THREADS_MAX: u32 = 1024;
/// Longest time for a killed process to be gone.
const END_SECONDS_MAX: i64 = 10;
/// v1 controllers in use; `cpuacct` counts, the others limit.
const V1_CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "pids"];

/// The period of a processor limit, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// Weight of a machine's processor when there are not enough for all, in v1's and v2's own scale:
/// the default.
const V1_SHARES_PER_CPU: u64 = 1024;
const V2_WEIGHT_PER_CPU: u64 = 100;

/// Flag of kernel threads in the ninth field of `/proc/<pid>/stat`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// The control groups of one agent.
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// One parent directory per hierarchy.
    parents: Vec<PathBuf>,
    version: Version,
    /// Percent of a processor for each one of a machine.
    cpu_percent: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The control group of one machine.
#[derive(Debug, Clone)]
pub struct Cgroup {
    dirs: Vec<PathBuf>,
    version: Version,
}

impl Cgroups {
    /// Creates the parents below the host's mounted hierarchies.
    pub fn open(name: &str) -> io::Result<Self> {
        Self::open_at(Path::new("/sys/fs/cgroup"), name)
    }

    fn open_at(root: &Path, name: &str) -> io::Result<Self> {
        let version = if root.join("cgroup.controllers").exists() { Version::V2 } else { Version::V1 };
        let mut parents = Vec::new();
        match version {
            Version::V2 => {
                let top = root.join("pandastack");
                let parent = top.join(name);
                fs::create_dir_all(&parent)?;
                for dir in [root, &top, &parent] {
                    // A controller that the host keeps for itself is not fatal: the others still limit.
                    for controller in ["+cpu", "+memory", "+pids"] {
                        let _ = fs::write(dir.join("cgroup.subtree_control"), controller);
                    }
                }
                parents.push(parent);
            }
            Version::V1 => {
                for controller in V1_CONTROLLERS {
                    let mount = root.join(controller);
                    if mount.join("cgroup.procs").exists() {
                        let parent = mount.join("pandastack").join(name);
                        fs::create_dir_all(&parent)?;
                        parents.push(parent);
                    }
                }
            }
        }
        if parents.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no cgroup hierarchy is mounted"));
        }
        Ok(Self { parents, version, cpu_percent: None })
    }

    /// Limits machines to this percentage of a processor per vCPU, including their emulator's work. Without
    /// it, all they have and one more: the emulator's own work is not the guest's.
    pub fn with_cpu_percent(self, cpu_percent: Option<u32>) -> Self {
        Self { cpu_percent, ..self }
    }

    fn cpu_us(&self, shape: Shape) -> u64 {
        match self.cpu_percent {
            Some(percent) => u64::from(shape.vcpus) * u64::from(percent) * CPU_PERIOD_US / 100,
            None => (u64::from(shape.vcpus) + 1) * CPU_PERIOD_US,
        }
    }

    /// Creates a group for one machine, limited to what a machine of that shape may use. Zygotes have no
    /// limits: what is forked from them passes through their group.
    pub fn create(&self, name: &str, shape: Option<Shape>) -> io::Result<Cgroup> {
        let group = self.group(name);
        for dir in &group.dirs {
            match fs::create_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let Some(shape) = shape else { return Ok(group) };
        let memory_bytes = shape.memory_bytes() + OVERHEAD_MIB * 1024 * 1024;
        let (cpu_us, vcpus) = (self.cpu_us(shape), u64::from(shape.vcpus));
        let limits: &[(&str, String)] = match self.version {
            Version::V2 => &[
                ("memory.max", memory_bytes.to_string()),
                ("pids.max", THREADS_MAX.to_string()),
                ("cpu.weight", (V2_WEIGHT_PER_CPU * vcpus).to_string()),
                ("cpu.max", format!("{cpu_us} {CPU_PERIOD_US}")),
            ],
            Version::V1 => &[
                ("memory.limit_in_bytes", memory_bytes.to_string()),
                ("pids.max", THREADS_MAX.to_string()),
                ("cpu.shares", (V1_SHARES_PER_CPU * vcpus).to_string()),
                ("cpu.cfs_period_us", CPU_PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", cpu_us.to_string()),
            ],
        };
        for (file, value) in limits {
            for path in group.dirs.iter().map(|dir| dir.join(file)).filter(|path| path.exists()) {
                fs::write(path, value)?;
            }
        }
        Ok(group)
    }

    /// The group of that name, made before.
    pub fn group(&self, name: &str) -> Cgroup {
        Cgroup { dirs: self.parents.iter().map(|parent| parent.join(name)).collect(), version: self.version }
    }

    /// Kills the processes in any group of this agent that are not in `known`, waits until they are gone, and names them.
    pub fn end_outside(&self, known: &HashSet<u32>) -> io::Result<Vec<u32>> {
        let mut pids = self.pids_outside(known);
        pids.retain(|pid| !is_kernel_thread(*pid));
        pids.iter().try_for_each(|pid| end_process(*pid))?;
        Ok(pids)
    }

    /// Processes in any group of this agent that are not in `known`.
    fn pids_outside(&self, known: &HashSet<u32>) -> Vec<u32> {
        let groups = self.parents.iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten();
        let texts = groups.filter_map(|entry| fs::read_to_string(entry.path().join("cgroup.procs")).ok());
        let pids: HashSet<u32> =
            texts.flat_map(|text| text.lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>()).collect();
        pids.difference(known).copied().collect()
    }

    /// Removes every empty group.
    pub fn sweep(&self) {
        for parent in &self.parents {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                // Groups with processes refuse, files are no directories: both are meant to stay.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// Removes all groups of this agent that contain no process.
    pub fn remove(&self) {
        self.sweep();
        for parent in &self.parents {
            let _ = fs::remove_dir(parent);
        }
    }

    /// Description for `doctor`.
    pub fn describe(&self) -> String {
        match self.version {
            Version::V2 => "cgroup v2".to_owned(),
            Version::V1 => format!("cgroup v1 ({} controllers)", self.parents.len()),
        }
    }
}

impl Cgroup {
    /// Moves a process in, with all its threads.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    /// Processor time used so far.
    pub fn cpu_ms(&self) -> u64 {
        match self.version {
            Version::V2 => {
                let stat = fs::read_to_string(self.dirs[0].join("cpu.stat")).unwrap_or_default();
                let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
                usage.and_then(|us| us.trim().parse::<u64>().ok()).unwrap_or(0) / 1000
            }
            Version::V1 => {
                let texts = self.dirs.iter().filter_map(|d| fs::read_to_string(d.join("cpuacct.usage")).ok());
                texts.filter_map(|text| text.trim().parse::<u64>().ok()).max().unwrap_or(0) / 1_000_000
            }
        }
    }

    /// Memory that its processes use now.
    pub fn memory_bytes(&self) -> u64 {
        let file = match self.version {
            Version::V2 => "memory.current",
            Version::V1 => "memory.usage_in_bytes",
        };
        let texts = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join(file)).ok());
        texts.filter_map(|text| text.trim().parse::<u64>().ok()).max().unwrap_or(0)
    }

    /// Its process, the first one if there are several.
    pub fn pid(&self) -> Option<u32> {
        let texts = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        texts.filter_map(|text| text.lines().next()?.parse().ok()).next()
    }

    /// Removes the group once its process is gone.
    pub fn remove(&self) {
        for dir in &self.dirs {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(
                        dir = %dir.display(), error = %chain(&error),
                        "cannot remove a control group; the next start removes it"
                    );
                }
                _ => {}
            }
        }
    }
}

/// Kills a process and waits until it is gone. Succeeds if the process has already ended.
fn end_process(pid: u32) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return Ok(()) };
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        other => other?,
    };
    match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    let limit = Timespec { tv_sec: END_SECONDS_MAX, tv_nsec: 0 };
    match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Returns whether a process is a kernel thread. KVM puts the thread of a machine's timer into the
/// machine's group; it cannot be killed, and ends with the machine.
fn is_kernel_thread(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| has_kernel_flag(&stat))
}

fn has_kernel_flag(stat: &str) -> bool {
    // The name is in parentheses and may contain anything, parentheses included.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = after_name.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_v2_host_gets_one_group_with_its_limits() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
        let cgroups = Cgroups::open_at(root.path(), "test").unwrap();
        let dir = root.path().join("pandastack/test/m1");
        fs::create_dir(&dir).unwrap();
        for file in ["memory.max", "pids.max", "cpu.max", "cpu.weight"] {
            fs::write(dir.join(file), "").unwrap();
        }
        let group = cgroups.create("m1", Some(Shape { vcpus: 1, memory_mib: 512 })).unwrap();
        assert_eq!(fs::read_to_string(dir.join("memory.max")).unwrap(), (1024 * 1024 * 1024).to_string());
        assert_eq!(fs::read_to_string(dir.join("cpu.max")).unwrap(), "200000 100000");
        let capped = cgroups.clone().with_cpu_percent(Some(50));
        capped.create("m1", Some(Shape { vcpus: 3, memory_mib: 512 })).unwrap();
        assert_eq!(fs::read_to_string(dir.join("cpu.max")).unwrap(), "150000 100000");
        assert_eq!(fs::read_to_string(dir.join("cpu.weight")).unwrap(), "300");
        fs::write(dir.join("cpu.stat"), "usage_usec 5000\nuser_usec 1\n").unwrap();
        assert_eq!(group.cpu_ms(), 5);
        fs::write(dir.join("memory.current"), "4096\n").unwrap();
        assert_eq!(group.memory_bytes(), 4096);
        fs::write(dir.join("cgroup.procs"), "17\n18\n").unwrap();
        assert_eq!(group.pid(), Some(17));
        let mut strays = cgroups.pids_outside(&HashSet::from([17]));
        strays.sort_unstable();
        assert_eq!(strays, [18]);
    }

    /// On the kernel's own groups: what spins gets its share of a processor and no more.
    #[test]
    fn a_spinning_machine_is_held_to_its_cap() {
        let name = format!("test-{}", std::process::id());
        let cgroups = match Cgroups::open(&name) {
            Ok(cgroups) => cgroups.with_cpu_percent(Some(20)),
            // Features that a host or a container may lack. Any other error is ours.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                return println!("skipped: a_spinning_machine_is_held_to_its_cap ({error})");
            }
            Err(error) => panic!("control groups cannot be made: {error}"),
        };
        let group = cgroups.create("m1", Some(Shape { vcpus: 2, memory_mib: 64 })).unwrap();
        // Three threads of execution that want three processors, and may have 2 x 20 percent of one.
        let spin = "for i in 1 2; do (while :; do :; done) & done; while :; do :; done";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("read go; {spin}")]).stdin(std::process::Stdio::piped());
        let mut spinning = command.spawn().unwrap();
        group.add(spinning.id()).unwrap();
        let began = std::time::Instant::now();
        drop(spinning.stdin.take());
        // Time itself is what is tested: a share of a processor is time used of time passed, and twenty
        // periods of the limit are enough to tell 40 percent from all of it.
        #[expect(clippy::disallowed_methods, reason = "measures over a fixed time")]
        std::thread::sleep(std::time::Duration::from_secs(2));
        let (used_ms, wall_ms) = (group.cpu_ms(), began.elapsed().as_millis() as u64);
        cgroups.end_outside(&HashSet::new()).unwrap();
        spinning.wait().unwrap();
        cgroups.remove();
        assert!(used_ms > wall_ms / 20, "it ran: {used_ms} of {wall_ms} ms");
        assert!(used_ms < wall_ms / 2, "it was held: {used_ms} of {wall_ms} ms, of which it may have 40 %");
    }

    #[test]
    fn kernel_threads_in_a_group_are_left_alone() {
        assert!(has_kernel_flag("806 (kvm-pit/802) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 90795"));
        assert!(!has_kernel_flag(
            "802 (fire) S 2 (cracker) S 1 802 802 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0"
        ));
        assert!(!is_kernel_thread(std::process::id()));
        // If there are kernel threads at all, this is their parent.
        if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
            assert!(is_kernel_thread(2));
        }
    }

    #[test]
    fn a_host_without_cgroups_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(Cgroups::open_at(root.path(), "test").is_err());
    }
}
