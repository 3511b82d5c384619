//! Idle machines: their number, the cost of each, and the servers' overhead for them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt;
use pandastack_client::Client;
use pandastack_types::SandboxId;

use super::footprint::PlatformPaths;
use super::sandbox::create;
use crate::api::{delete, exec, ms_since};
use crate::memory;
use crate::plot::Plot;
use crate::report::Report;

/// Creates, and later commands, at once.
const AT_ONCE: usize = 4;
/// Samples of the servers' memory while machines are added.
const LOOKS: u32 = 10;
/// Memory of an idle server, in MiB: alone, and for each sandbox that an agent has.
const SERVER_MIB: f64 = 60.0;
const PER_SANDBOX_MIB: f64 = 0.2;
/// Longest time for servers to release memory.
const GIVE_BACK_MAX: Duration = Duration::from_secs(60);
/// Interval between two checks: no event reports another process's memory.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Failures that are shown; the rest is only counted.
const SHOWN: usize = 3;

/// Creates sandboxes, runs a command in each one, and deletes them.
pub async fn measure(
    client: &Client,
    platform: &PlatformPaths,
    count: u32,
    report: &mut Report,
    plots: &Path,
) -> Result<()> {
    let before = platform.footprint(client).await?;
    platform.sample_servers("no sandbox", report)?;
    for role in ["control", "agent"] {
        let mib = report.median(&format!("memory of {role}, no sandbox"));
        report.bar(&format!("memory of {role}, no sandbox, in MiB"), mib, SERVER_MIB);
    }
    let mut plot = Plot::new("Memory of the servers", "live sandboxes", "MiB");
    let available = available_mib();
    let began = Instant::now();
    let mut alive: Vec<SandboxId> = Vec::new();
    let mut refused = 0;
    while (alive.len() as u32) + refused < count {
        for role in ["control", "agent"] {
            plot.point(role, alive.len() as f64, platform.server_mib(role)?);
        }
        let next = (count / LOOKS).max(1).min(count - alive.len() as u32 - refused);
        refused += grow(client, next, &mut alive).await;
    }
    report.sample(&format!("{count} creates, {AT_ONCE} at once"), "s", began.elapsed().as_secs_f64());
    report.sample("live sandboxes", "count", alive.len() as f64);
    let silent = ask_all(client, &alive, report).await;
    weigh(platform, &alive, available, report)?;
    for role in ["control", "agent"] {
        let mib = platform.server_mib(role)?;
        plot.point(role, alive.len() as f64, mib);
        report.sample(&format!("memory of {role}, {count} sandboxes"), "MiB", mib);
    }
    report.bar(
        &format!("of {count} sandboxes not made or not answering"),
        Some(f64::from(refused + silent)),
        0.0,
    );
    let agent = report.median(&format!("memory of agent, {count} sandboxes"));
    report.bar(
        "memory of agent with these, in MiB",
        agent,
        SERVER_MIB + PER_SANDBOX_MIB * alive.len() as f64,
    );
    let deletes = futures::stream::iter(&alive).map(|id| delete(client, id));
    let deleted: Vec<Result<()>> = deletes.buffer_unordered(AT_ONCE).collect().await;
    deleted.into_iter().collect::<Result<()>>()?;
    let leaked: i64 = platform.leaks(client, &before).await?.values().sum();
    report.bar(&format!("things left by {count} idle sandboxes"), Some(leaked as f64), 0.0);
    let agent = given_back_mib(platform).await?;
    report.sample(&format!("memory of agent, after {count} sandboxes"), "MiB", agent);
    report.bar("memory of agent after these, in MiB", Some(agent), SERVER_MIB);
    plot.write(&plots.join("servers.svg"))
}

/// The agent's memory after it released unused memory, which it does periodically.
async fn given_back_mib(platform: &PlatformPaths) -> Result<f64> {
    let deadline = Instant::now() + GIVE_BACK_MAX;
    loop {
        let mib = platform.server_mib("agent")?;
        if mib <= SERVER_MIB || Instant::now() > deadline {
            return Ok(mib);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Makes some more; how many were refused.
async fn grow(client: &Client, more: u32, alive: &mut Vec<SandboxId>) -> u32 {
    let creates = futures::stream::iter(0..more).map(|_| create(client));
    let made: Vec<Result<_>> = creates.buffer_unordered(AT_ONCE).collect().await;
    let mut refused = 0;
    for outcome in made {
        match outcome {
            Ok(sandbox) => alive.push(sandbox.id),
            Err(error) => {
                refused += 1;
                eprintln!("with {} alive: {error:#}", alive.len());
            }
        }
    }
    refused
}

/// A command in each; how many did not run it.
async fn ask_all(client: &Client, alive: &[SandboxId], report: &mut Report) -> u32 {
    let asked = futures::stream::iter(alive).map(|id| async move {
        let began = Instant::now();
        exec(client, id, "true").await.map(|_| ms_since(began))
    });
    let answers: Vec<Result<f64>> = asked.buffer_unordered(AT_ONCE).collect().await;
    let mut silent = Vec::new();
    for answer in answers {
        match answer {
            Ok(took) => report.sample("exec with all of them alive", "ms", took),
            Err(error) => silent.push(error),
        }
    }
    silent.iter().take(SHOWN).for_each(|error| eprintln!("does not answer: {error:#}"));
    silent.len() as u32
}

/// The memory share of each machine's process, and the decrease of the host's available memory.
fn weigh(platform: &PlatformPaths, alive: &[SandboxId], available: f64, report: &mut Report) -> Result<()> {
    for id in alive {
        let pss = memory::sandbox_pss_mib(&platform.data_dir, id)?;
        report.sample("memory of an idle sandbox (PSS), all alive", "MiB", pss);
    }
    let taken = (available - available_mib()) / (alive.len().max(1) as f64);
    report.sample("memory that the host has less, for each", "MiB", taken);
    Ok(())
}

fn available_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}
