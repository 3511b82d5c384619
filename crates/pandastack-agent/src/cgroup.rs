//! A control group per machine, on cgroup v2 or on the v1 controllers of older hosts.
//!
//! ```text
//! pandastack/<host>/agent                      the agent
//! pandastack/<host>/w-<workspace>/<sandbox>    a machine, in the group of its workspace
//! pandastack/<host>/<name>                     a bake, a zygote
//! ```
//!
//! When there are not enough processors for all, they are shared between workspaces first, and within
//! each between its machines: a workspace gains nothing by having more machines than others.
//!
//! Plain file writes. The groups of one agent are below one parent, so that remains of an
//! interrupted create are found there ([`Cgroups::end_outside`]).

mod process;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use self::process::{end_process, is_kernel_thread};
use pandastack_engine::Shape;
use pandastack_types::chain;

/// Memory an emulator may use beyond the guest's own: translation cache, device state, stacks.
const OVERHEAD_MIB: u64 = 512;
/// Threads in one machine's group. A machine has about six, but the children of a fork begin in their parent's group.
const THREADS_MAX: u32 = 1024;
/// v1 controllers in use; `cpuacct` counts, the others limit.
const V1_CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "pids"];

/// The period of a processor limit, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// Weight of a machine's processor when there are not enough for all, in v1's and v2's own scale:
/// the default.
const V1_SHARES_PER_CPU: u64 = 1024;
const V2_WEIGHT_PER_CPU: u64 = 100;
/// Weight of a workspace, in processors; a bake or a zygote has the weight of one.
const WORKSPACE_WEIGHT_CPUS: u64 = 4;
/// Weight of the agent, which serves all of them.
const AGENT_WEIGHT_CPUS: u64 = 16;
/// Attempts to create a group inside a workspace's group.
const WORKSPACE_ATTEMPTS: u32 = 5;
/// Beginning of the name of a workspace's group.
const WORKSPACE_PREFIX: &str = "w-";

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
                [root, &top, &parent].into_iter().for_each(delegate);
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

    /// Limits machines to this percentage of a processor per vCPU, including their emulator's work.
    /// Without it, the limit is one processor above its vCPUs, for the emulator's own work.
    pub fn with_cpu_percent(self, cpu_percent: Option<u32>) -> Self {
        Self { cpu_percent, ..self }
    }

    fn cpu_us(&self, shape: Shape) -> u64 {
        match self.cpu_percent {
            Some(percent) => u64::from(shape.vcpus) * u64::from(percent) * CPU_PERIOD_US / 100,
            None => (u64::from(shape.vcpus) + 1) * CPU_PERIOD_US,
        }
    }

    /// Makes the agent's own group, for it to enter. Its memory has no limit here: machines start in this
    /// group, and what they use until they move to their own stays charged to it. Budgets bound what the
    /// agent holds ([`crate::budget`]).
    pub fn create_own(&self, name: &str) -> io::Result<Cgroup> {
        let group = self.create(name, None)?;
        self.weigh(&group.dirs, AGENT_WEIGHT_CPUS)?;
        Ok(group)
    }

    fn weigh(&self, dirs: &[PathBuf], cpus: u64) -> io::Result<()> {
        match self.version {
            Version::V2 => write_existing(dirs, "cpu.weight", V2_WEIGHT_PER_CPU * cpus),
            Version::V1 => write_existing(dirs, "cpu.shares", V1_SHARES_PER_CPU * cpus),
        }
    }

    /// Makes the group of a workspace that a machine's group is in.
    fn create_workspace(&self, group: &Cgroup) -> io::Result<()> {
        let parents = group.dirs.iter().filter_map(|dir| dir.parent());
        let dirs: Vec<_> = parents.filter(|dir| is_workspace(dir)).map(Path::to_owned).collect();
        for dir in &dirs {
            match fs::create_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => self.weigh(std::slice::from_ref(dir), WORKSPACE_WEIGHT_CPUS)?,
            }
        }
        // Also where another machine made it just now: limits are written only where files for them exist.
        if self.version == Version::V2 {
            dirs.iter().for_each(|dir| delegate(dir));
        }
        Ok(())
    }

    /// Creates a group for one machine, with the limits of its shape. Zygotes have no limits: their
    /// forks pass through their group.
    pub fn create(&self, name: &str, shape: Option<Shape>) -> io::Result<Cgroup> {
        let group = self.group(name);
        // A workspace's group is removed with its last machine, which may happen just before this
        // machine's group is created in it.
        let made = (0..WORKSPACE_ATTEMPTS).find_map(|attempt| {
            let made = self.create_workspace(&group).and_then(|()| group.create());
            let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            (attempt + 1 == WORKSPACE_ATTEMPTS || !made.as_ref().is_err_and(is_gone)).then_some(made)
        });
        made.unwrap_or(Ok(()))?;
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
            write_existing(&group.dirs, file, value)?;
        }
        Ok(group)
    }

    /// Returns the name of a machine's group, inside its workspace's group if it has one.
    pub fn name_in(workspace: Option<&str>, name: &str) -> String {
        workspace.map_or_else(|| name.to_owned(), |id| format!("{WORKSPACE_PREFIX}{id}/{name}"))
    }

    /// The group of that name. Machines from before workspaces had groups are found where they are.
    pub fn group(&self, name: &str) -> Cgroup {
        let dir_in = |parent: &PathBuf| {
            let (dir, own_name) = (parent.join(name), name.rsplit('/').next().unwrap_or(name));
            let former = parent.join(own_name);
            if !dir.exists() && former.exists() { former } else { dir }
        };
        Cgroup { dirs: self.parents.iter().map(dir_in).collect(), version: self.version }
    }

    /// The groups below the parents: those of workspaces after the machines in them.
    fn all(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for dir in self.parents.iter().flat_map(|parent| children(parent)) {
            if is_workspace(&dir) {
                found.extend(children(&dir));
            }
            found.push(dir);
        }
        found
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
        let groups = self.all().into_iter();
        let texts = groups.filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        let pids: HashSet<u32> =
            texts.flat_map(|text| text.lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>()).collect();
        pids.difference(known).copied().collect()
    }

    /// Removes every empty group.
    pub fn sweep(&self) {
        for dir in self.all() {
            // Fails for groups with processes and for files: both should stay.
            let _ = fs::remove_dir(dir);
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

/// Enables limits in the child groups of a v2 group. A controller that the host does not delegate
/// is not fatal: the others still apply.
fn delegate(dir: &Path) {
    for controller in ["+cpu", "+memory", "+pids"] {
        let _ = fs::write(dir.join("cgroup.subtree_control"), controller);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_workspace(dir: &Path) -> bool {
    dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(WORKSPACE_PREFIX))
}

/// Writes a setting wherever a hierarchy has it.
fn write_existing(dirs: &[PathBuf], file: &str, value: impl std::fmt::Display) -> io::Result<()> {
    let mut paths = dirs.iter().map(|dir| dir.join(file)).filter(|path| path.exists());
    paths.try_for_each(|path| fs::write(path, value.to_string()))
}

impl Cgroup {
    fn create(&self) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        })
    }

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

    /// Memory of its processes that is released only by ending or hibernating them.
    pub fn own_memory_bytes(&self) -> u64 {
        let own = match self.version {
            Version::V2 => ["anon ", "shmem "],
            Version::V1 => ["rss ", "shmem "],
        };
        let texts = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join("memory.stat")).ok());
        let of_text = |text: String| {
            let fields = text.lines().filter_map(|line| own.iter().find_map(|name| line.strip_prefix(name)));
            fields.filter_map(|bytes| bytes.trim().parse::<u64>().ok()).sum::<u64>()
        };
        texts.map(of_text).max().unwrap_or(0)
    }

    /// The first process in the group.
    pub fn pid(&self) -> Option<u32> {
        let texts = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        texts.filter_map(|text| text.lines().next()?.parse().ok()).next()
    }

    /// Removes the group once its process is gone, and the workspace's group with its last machine.
    pub fn remove(&self) {
        let workspaces = self.dirs.iter().filter_map(|dir| dir.parent()).filter(|dir| is_workspace(dir));
        self.remove_own();
        for workspace in workspaces {
            // Refused while there is another group in it.
            let _ = fs::remove_dir(workspace);
        }
    }

    fn remove_own(&self) {
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

#[cfg(test)]
mod tests;
