//! Memory pressure: choice of the machines that go to sleep when the host's memory runs short.
//!
//! Machines may write more memory than they were promised. Each workspace's share is the host's
//! memory divided by the number of workspaces that have machines awake here. When memory runs
//! short, machines of workspaces beyond their share go to sleep on disk first: those asleep in
//! memory, then idle ones. Of the other workspaces, only machines asleep in memory move to disk.
//! If the kernel has to kill, it starts with machines of the workspace that uses the most memory.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pandastack_types::{WorkspaceId, chain};

use crate::blocking::blocking;
use crate::cgroup::Cgroups;
use crate::error::AgentError;
use crate::host::{self, Host};
use crate::sandbox::handle::SandboxHandle;

/// Interval between checks of the free memory; no event reports a change.
const LOOK: Duration = Duration::from_secs(1);
/// Lowest threshold of available memory below which machines are put to sleep.
const SHORT_MB_MIN: u64 = 768;
/// The threshold as a fraction of the host's memory (one part in this many), if that is more.
const SHORT_PART: u64 = 16;
/// Machines that go to sleep at the same time.
const RELIEF_AT_ONCE: usize = 4;
/// Longest time for one machine to go to sleep.
const RELIEF_MAX: Duration = Duration::from_secs(30);
/// Rank of a machine for the kernel's out-of-memory killer, as engines set it.
const RANK: &str = "300";
/// Rank of machines of the workspace that uses the most memory.
const RANK_FIRST: &str = "900";

/// A machine that holds memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder<T> {
    sandbox: T,
    workspace: Option<WorkspaceId>,
    bytes: u64,
    sleeps: bool,
    idle_seconds: u64,
}

/// The action to take.
#[derive(Debug, PartialEq, Eq)]
struct Plan<T> {
    /// Machines to put to sleep, in this order.
    relieve: Vec<T>,
    /// The workspace that uses the most memory, if it is beyond its share and not alone.
    guilty: Option<Option<WorkspaceId>>,
}

fn plan<T>(mut holders: Vec<Holder<T>>, total_bytes: u64) -> Plan<T> {
    let mut used: HashMap<Option<WorkspaceId>, u64> = HashMap::new();
    for holder in &holders {
        *used.entry(holder.workspace.clone()).or_default() += holder.bytes;
    }
    let share = total_bytes / (used.len() as u64).max(1);
    let beyond = |workspace: &Option<WorkspaceId>| {
        let bytes = used.get(workspace).copied().unwrap_or(0);
        if bytes > share || used.len() == 1 { bytes } else { 0 }
    };
    let guilty = used.keys().max_by_key(|workspace| beyond(workspace)).cloned();
    let guilty = guilty.filter(|workspace| used.len() > 1 && beyond(workspace) > 0);
    holders.retain(|holder| holder.sleeps || beyond(&holder.workspace) > 0);
    holders.sort_by_key(|holder| {
        std::cmp::Reverse((beyond(&holder.workspace), holder.sleeps, holder.idle_seconds))
    });
    Plan { relieve: holders.into_iter().map(|holder| holder.sandbox).collect(), guilty }
}

/// Watches the host's memory until the agent stops.
pub(crate) async fn run(host: Arc<Host>) {
    let mut ranked = false;
    loop {
        tokio::select! {
            () = host.shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let short_mb = (host::memory_bytes() / (1024 * 1024) / SHORT_PART).max(SHORT_MB_MIN);
        let available_mb = host::memory_available_mb();
        // The kernel may have to kill within a second: set ranks before that.
        if available_mb >= 2 * short_mb && !ranked {
            continue;
        }
        let holders = holders(&host).await;
        let plan = plan(holders, host.memory_total_mb() * 1024 * 1024);
        ranked = plan.guilty.is_some() && available_mb < 2 * short_mb;
        rank(&host, plan.guilty.filter(|_| ranked)).await;
        if available_mb < short_mb {
            relieve(plan.relieve, available_mb, short_mb).await;
        }
    }
}

/// Puts machines to sleep until enough memory is available, a few at once: one may be busy.
async fn relieve(sandboxes: Vec<SandboxHandle>, available_mb: u64, short_mb: u64) {
    for some in sandboxes.chunks(RELIEF_AT_ONCE) {
        if host::memory_available_mb() >= short_mb {
            return;
        }
        join_all(some.iter().map(|sandbox| relieve_one(sandbox, available_mb))).await;
    }
}

async fn relieve_one(sandbox: &SandboxHandle, available_mb: u64) {
    let id = sandbox.view().id;
    match tokio::time::timeout(RELIEF_MAX, sandbox.relieve()).await {
        Ok(Ok(true)) => {
            tracing::warn!(sandbox = %id, available_mb, "memory is short: a sandbox went to sleep early");
        }
        Ok(Ok(false)) => {}
        Ok(Err(error)) => {
            tracing::warn!(sandbox = %id, error = %chain(&error), "cannot put a sandbox to sleep early");
        }
        Err(_) => tracing::warn!(sandbox = %id, "a sandbox does not go to sleep in time"),
    }
}

async fn holders(host: &Host) -> Vec<Holder<SandboxHandle>> {
    let awake = awake(host);
    let cgroups = host.cgroups.clone();
    let measured = blocking(move || {
        let measure = |(name, sandbox): (String, SandboxHandle)| {
            let view = sandbox.view();
            Holder {
                workspace: sandbox.output_budget().workspace().cloned(),
                bytes: cgroups.group(&name).own_memory_bytes(),
                sleeps: sandbox.sleeps_in_memory(),
                idle_seconds: view.idle_seconds,
                sandbox,
            }
        };
        Ok::<_, AgentError>(awake.into_iter().map(measure).collect())
    });
    measured.await.unwrap_or_default()
}

/// Sandboxes that hold memory, with the names of their control groups.
fn awake(host: &Host) -> Vec<(String, SandboxHandle)> {
    let sandboxes = host.sandboxes();
    let awake = sandboxes.iter().filter(|(_, handle)| handle.awake_shape().is_some());
    let named = |(id, handle): (&pandastack_types::SandboxId, &SandboxHandle)| {
        let workspace = handle.output_budget().workspace().map(WorkspaceId::as_str);
        (Cgroups::name_in(workspace, id.as_str()), handle.clone())
    };
    awake.map(named).collect()
}

/// Ranks one workspace's machines first for the kernel's OOM killer, and resets the others.
async fn rank(host: &Host, guilty: Option<Option<WorkspaceId>>) {
    let (awake, cgroups) = (awake(host), host.cgroups.clone());
    let ranking = blocking(move || {
        for (name, sandbox) in awake {
            let first =
                guilty.as_ref().is_some_and(|one| one.as_ref() == sandbox.output_budget().workspace());
            let wanted = if first { RANK_FIRST } else { RANK };
            let Some(pid) = cgroups.group(&name).pid() else { continue };
            let path = format!("/proc/{pid}/oom_score_adj");
            // Other ranks were set for another reason; an ended process needs none.
            let is_ours = fs::read_to_string(&path).is_ok_and(|rank| {
                let rank = rank.trim();
                rank != wanted && [RANK, RANK_FIRST].contains(&rank)
            });
            if is_ours && let Err(error) = fs::write(&path, wanted) {
                tracing::warn!(path, error = %chain(&error), "cannot rank a machine");
            }
        }
        Ok::<_, AgentError>(())
    });
    if let Err(error) = ranking.await {
        tracing::warn!(error = %chain(&error), "cannot rank machines for the out-of-memory killer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn holder(
        name: &'static str,
        workspace: &str,
        gib: u64,
        sleeps: bool,
        idle_seconds: u64,
    ) -> Holder<&'static str> {
        let workspace = Some(workspace.parse().unwrap());
        Holder { sandbox: name, workspace, bytes: gib * GIB, sleeps, idle_seconds }
    }

    #[track_caller]
    fn check(holders: &[Holder<&'static str>], relieve: &[&'static str], guilty: Option<&str>) {
        let guilty = guilty.map(|id| Some(id.parse().unwrap()));
        assert_eq!(plan(holders.to_vec(), 12 * GIB), Plan { relieve: relieve.to_vec(), guilty });
    }

    #[test]
    fn the_workspace_over_its_share_is_reclaimed_first() {
        let big = [
            holder("busy", "big", 4, false, 0),
            holder("idle", "big", 2, false, 90),
            holder("asleep", "big", 1, true, 30),
        ];
        let small =
            [holder("small idle", "small", 1, false, 900), holder("small asleep", "small", 1, true, 5)];
        let all = [&big[..], &small[..]].concat();
        check(&all, &["asleep", "idle", "busy", "small asleep"], Some("big"));
    }

    #[test]
    fn memory_pressure_spares_workspaces_within_their_share() {
        check(&[holder("a", "one", 1, false, 5), holder("b", "one", 1, false, 7)], &["b", "a"], None);
        let within = [holder("a", "one", 5, false, 50), holder("b", "two", 2, true, 1)];
        check(&within, &["b"], None);
        check(&[], &[], None);
    }
}
