//! Network slots: the time to take one from a filled pool, and the time to create one.
//!
//! Runs in a namespace that represents the host, so that this machine is not changed; the kernel
//! does the same work.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use pandastack_net::{NetConfig, NetworkPolicy, SlotPool};

use crate::report::Report;

/// Longest time for a pool to fill.
const FILL_MAX: Duration = Duration::from_secs(300);
/// Interval between two checks of it.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Slots taken with each policy.
    takes: usize,
}

impl Plan {
    /// A minute.
    pub const QUICK: Plan = Plan { takes: 200 };
    /// Enough for percentiles that are worth publishing.
    pub const FULL: Plan = Plan { takes: 1000 };
}

/// Measures on a thread in a namespace of its own.
pub fn measure(plan: Plan, report: &mut Report) -> Result<()> {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace; this needs root")?;
            let loopback = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
            loopback.context("start `ip`")?;
            // The runtime's threads start here, and so in the new namespace.
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(run(plan, report))
        });
        inside.join().unwrap_or_else(|_| Err(anyhow!("the measuring thread panicked")))
    })
}

async fn run(plan: Plan, report: &mut Report) -> Result<()> {
    let by_name: NetworkPolicy = serde_json::from_str(r#"{"allow": ["*.example.com"]}"#)?;
    let policies = [("open", NetworkPolicy::all()), ("closed", NetworkPolicy::none()), ("by name", by_name)];
    for (name, policy) in policies {
        measure_policy(plan, name, &policy, report).await.with_context(|| format!("policy {name}"))?;
    }
    let take = "slot take, open";
    report.bar("slot take from a filled pool, p99, ms", report.percentile(take, 99.0), 1.0);
    report.bar("slot made, mean, ms (50 in a second)", report.median("slot made, mean of a fill"), 20.0);
    Ok(())
}

async fn measure_policy(plan: Plan, name: &str, policy: &NetworkPolicy, report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut config = NetConfig::new(dir.path());
    config.name_prefix = "bench".to_owned();
    config.ready_target = plan.takes;
    let began = Instant::now();
    let pool = SlotPool::open(config)?;
    while pool.stats().ready < plan.takes {
        if began.elapsed() > FILL_MAX {
            bail!("a pool of {} slots did not fill within {} s", plan.takes, FILL_MAX.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let per_slot_ms = began.elapsed().as_secs_f64() * 1e3 / plan.takes as f64;
    report.sample("slot made, mean of a fill", "ms", per_slot_ms);
    // Held to the end: otherwise released slots would be destroyed during the measurement.
    let mut taken = Vec::new();
    for _ in 0..plan.takes {
        let began = Instant::now();
        let slot = pool.take(policy).await?;
        report.sample(&format!("slot take, {name}"), "ms", began.elapsed().as_secs_f64() * 1e3);
        taken.push(slot);
    }
    drop(taken);
    pool.shutdown().await.context("remove the slots")
}
