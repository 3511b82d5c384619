//! Resources that a platform uses on its host: processes, mounts, namespaces, links, rules, files
//! and descriptors; and the memory of its servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pandastack_client::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::report::Report;

/// Beginning of a machine process's name.
const MACHINE: &str = "qemu-system";
/// Longest time for deleted sandboxes to disappear.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// Interval between two checks: no event reports that a host is clean.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Kinds of resources that vary with the number of ready slots.
const READY: [&str; 4] = ["links", "namespaces", "mounts", "rules"];
const READY_SLACK: i64 = 8;
/// Number of descriptors that pooled connections may add.
const CONNECTION_SLACK: i64 = 16;

/// Directories and names of the measured platform.
#[derive(Debug, Clone)]
pub struct PlatformPaths {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Sockets and namespaces.
    pub runtime_dir: PathBuf,
    /// Prefix of interface and table names.
    pub net_prefix: String,
}

/// Numbers of things, by kind.
pub type Footprint = BTreeMap<&'static str, i64>;

impl PlatformPaths {
    /// Counts every resource that a leak would increase.
    pub async fn footprint(&self, client: &Client) -> Result<Footprint> {
        let store = self.data_dir.join("store");
        let in_store = |kind: &str| count_entries(&store.join(kind));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let runtime = self.runtime_dir.display().to_string();
        let host = std::fs::read_to_string(self.data_dir.join("host-id")).unwrap_or_default();
        let prefix = format!("{}-", self.net_prefix);
        let rows = client.list_sandboxes().await.context("list sandboxes")?.len();
        Ok(Footprint::from([
            ("machines", i64::try_from(self.machines().len())?),
            (
                "links",
                names(Path::new("/sys/class/net")).filter(|name| name.starts_with(&prefix)).count() as i64,
            ),
            ("namespaces", count_entries(&self.runtime_dir.join("netns"))),
            ("runtime directories", count_entries(&self.runtime_dir.join("m"))),
            ("mounts", mounts.lines().filter(|line| line.contains(&runtime)).count() as i64),
            ("rules", self.rules()),
            (
                "directories",
                in_store("sandboxes") + in_store("snapshots") + in_store(".staging") + in_store(".trash"),
            ),
            ("control groups", cgroups(host.trim())),
            ("agent's descriptors", self.descriptors("agent")?),
            ("control's descriptors", self.descriptors("control")?),
            ("rows", i64::try_from(rows)?),
        ]))
    }

    /// Returns the resources that exceed `before` once the host is idle, by kind.
    pub async fn leaks(&self, client: &Client, before: &Footprint) -> Result<Footprint> {
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            let now = self.footprint(client).await?;
            let more: Footprint =
                now.into_iter().map(|(kind, count)| (kind, grown(kind, count, before))).collect();
            if more.values().all(|more| *more == 0) || Instant::now() > deadline {
                return Ok(more);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Memory of a server's process, all of it, in MiB.
    pub fn server_mib(&self, role: &str) -> Result<f64> {
        let path = format!("/proc/{}/status", self.server(role)?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: Option<f64> = kib.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
        Ok(kib.with_context(|| format!("{path} has no VmRSS line"))? / 1024.0)
    }

    /// Notes the memory of both servers.
    pub fn sample_servers(&self, when: &str, report: &mut Report) -> Result<()> {
        for role in ["control", "agent"] {
            report.sample(&format!("memory of {role}, {when}"), "MiB", self.server_mib(role)?);
        }
        Ok(())
    }

    /// Kills a server as a crash would.
    pub fn kill(&self, role: &str) -> Result<()> {
        let pid = i32::try_from(self.server(role)?).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{role} has no process id"))?;
        kill_process(pid, Signal::KILL).with_context(|| format!("kill {role}"))
    }

    fn server(&self, role: &str) -> Result<u32> {
        let data_dir = self.data_dir.display().to_string();
        let plays = |pid: &u32| {
            let words = command_line(*pid);
            words.get(1).is_some_and(|word| word == role) && words.contains(&data_dir)
        };
        pids().find(plays).with_context(|| format!("no process plays {role} for {data_dir}"))
    }

    fn descriptors(&self, role: &str) -> Result<i64> {
        Ok(count_entries(Path::new(&format!("/proc/{}/fd", self.server(role)?))))
    }

    /// Processes of machines, by the files they have open.
    fn machines(&self) -> Vec<u32> {
        pids().filter(|pid| name_of(*pid).starts_with(MACHINE) && has_open(*pid, &self.data_dir)).collect()
    }

    fn rules(&self) -> i64 {
        let table = format!("pandastack_{}", self.net_prefix);
        let listed = Command::new("nft").args(["list", "table", "inet", &table]).output();
        listed.map_or(0, |listed| String::from_utf8_lossy(&listed.stdout).lines().count() as i64)
    }
}

fn grown(kind: &str, count: i64, before: &Footprint) -> i64 {
    let slack = match kind {
        _ if READY.contains(&kind) => READY_SLACK,
        _ if kind.ends_with("descriptors") => CONNECTION_SLACK,
        _ => 0,
    };
    let more = count - before.get(kind).copied().unwrap_or_default();
    if more > slack { more } else { 0 }
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

fn count_entries(dir: &Path) -> i64 {
    names(dir).count() as i64
}

fn pids() -> impl Iterator<Item = u32> {
    names(Path::new("/proc")).filter_map(|name| name.parse().ok())
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

fn command_line(pid: u32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn has_open(pid: u32, dir: &Path) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|target| target.starts_with(dir))
}

/// Groups of the agent of that host, in the hierarchy that has them: version 2, or one of version 1.
fn cgroups(host: &str) -> i64 {
    let root = Path::new("/sys/fs/cgroup");
    let parents = [root.to_owned(), root.join("memory")].map(|dir| dir.join("pandastack").join(host));
    let dirs = parents.iter().flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
    dirs.filter(|entry| entry.path().is_dir()).count() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_ready_is_no_leak_and_a_machine_is() {
        let before = Footprint::from([("links", 32), ("machines", 1)]);
        for (kind, count, leaked) in
            [("links", 36, 0), ("links", 42, 10), ("machines", 1, 0), ("machines", 2, 1), ("machines", 0, 0)]
        {
            assert_eq!(grown(kind, count, &before), leaked, "{kind} {count}");
        }
    }
}
