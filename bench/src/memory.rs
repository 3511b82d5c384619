//! Memory of idle sandboxes: the proportional share of each machine's process, as the kernel counts it.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use serde_json::Value;

use crate::api::{create, delete};
use crate::report::Report;

/// Addresses of a network slot: two of four are used.
const ADDRESSES_PER_SLOT: u32 = 4;

/// Makes sandboxes, reads their processes' share, deletes them.
pub async fn measure(client: &Client, data_dir: &Path, count: u32, report: &mut Report) -> Result<()> {
    let mut alive = Vec::new();
    for _ in 0..count {
        alive.push(create(client, "base").await?.id);
    }
    for id in &alive {
        report.sample("memory of an idle sandbox (PSS)", "MiB", sandbox_pss_mib(data_dir, id)?);
    }
    for pid in pids(&data_dir.join("store/zygotes")) {
        report.sample("memory of a zygote (PSS)", "MiB", pss_mib(pid)?);
    }
    for id in &alive {
        delete(client, id).await?;
    }
    Ok(())
}

/// The proportional share of a sandbox's process.
pub fn sandbox_pss_mib(data_dir: &Path, id: &SandboxId) -> Result<f64> {
    pss_mib(machine_pid(data_dir, id)?)
}

/// Private bytes of a sandbox's memory, as the kernel counts them: the pages written since it was
/// created.
pub fn dirty_bytes(data_dir: &Path, id: &SandboxId) -> Result<u64> {
    let path = format!("/proc/{}/smaps", machine_pid(data_dir, id)?);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let mut in_memory_file = false;
    let mut kib = 0;
    for line in text.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            in_memory_file = line.contains("/memory.");
        } else if in_memory_file && let Some(rest) = line.strip_prefix("Private_Dirty:") {
            kib += rest.trim().trim_end_matches("kB").trim().parse::<u64>().context("read smaps")?;
        }
    }
    ensure!(kib > 0, "{path} shows no memory of the machine");
    Ok(kib * 1024)
}

/// The process of a sandbox's machine, from the agent's record of it.
fn machine_pid(data_dir: &Path, id: &SandboxId) -> Result<u64> {
    let path = data_dir.join("store/sandboxes").join(id.as_str()).join("record.json");
    read_pid(&path).with_context(|| format!("find the machine in {}", path.display()))
}

/// The network slot of a sandbox, from the agent's record of it.
fn slot(data_dir: &Path, id: &SandboxId) -> Result<u32> {
    let path = data_dir.join("store/sandboxes").join(id.as_str()).join("record.json");
    let record: Value =
        serde_json::from_slice(&std::fs::read(&path).with_context(|| format!("read {}", path.display()))?)?;
    let slot = record["slot"].as_u64().and_then(|slot| u32::try_from(slot).ok());
    slot.with_context(|| format!("{} names no slot", path.display()))
}

/// A sandbox's own address on this host, past the edge.
pub fn address(data_dir: &Path, network: Ipv4Addr, id: &SandboxId) -> Result<Ipv4Addr> {
    Ok(Ipv4Addr::from_bits(network.to_bits() + slot(data_dir, id)? * ADDRESSES_PER_SLOT + 2))
}

/// Processes of the machines that have a record below a directory.
pub fn pids(records: &Path) -> Vec<u64> {
    let dirs = std::fs::read_dir(records).into_iter().flatten().flatten();
    dirs.filter_map(|entry| read_pid(&entry.path().join("record.json"))).collect()
}

/// A record is a machine's, or holds one.
fn read_pid(path: &Path) -> Option<u64> {
    let record: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    record["machine"]["pid"].as_u64().or_else(|| record["pid"].as_u64())
}

/// Proportional set size of all processes of this host, in MiB. Processes that end during the scan
/// count as zero.
pub fn host_pss_mib() -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| pss_mib(pid).ok()).sum()
}

fn pss_mib(pid: u64) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: Option<f64> = kib.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
    Ok(kib.with_context(|| format!("{path} has no Pss line"))? / 1024.0)
}
