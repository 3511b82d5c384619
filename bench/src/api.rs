//! The public API, as a client sees it: every time is from sending a request to having its answer.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{CreateSandbox, ExecRequest, ExecResult, ForkSandbox, Sandbox};

use crate::bare::Bare;
use crate::report::Report;

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Bare restores, each beside a create with and one without a zygote.
    pub restores: u32,
    /// Creates of each template.
    pub creates: u32,
    /// Forks of one sandbox.
    pub forks: u32,
    /// Commands in one sandbox.
    pub execs: u32,
    /// Sandboxes alive while memory is measured.
    pub idle_sandboxes: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan = Plan { restores: 40, creates: 50, forks: 20, execs: 100, idle_sandboxes: 20 };
    /// For publication.
    pub const FULL: Plan = Plan { restores: 200, creates: 200, forks: 100, execs: 1000, idle_sandboxes: 20 };
}

/// Creates before the first sample: connections, page cache and slots settle.
const WARM_UP: u32 = 3;
/// Life of a measured sandbox, should this program die.
const TTL_SECONDS: u64 = 900;
/// Leaves a process that has written 64 MiB and stays.
const DIRTY_64_MIB: &str = "python3 -c 'import sys, time; held = b\"x\" * (64 << 20); open(\"/tmp/dirty\", \"w\").close(); \
                            time.sleep(3600)' >/dev/null 2>&1 & until [ -e /tmp/dirty ]; do sleep 0.05; done";

/// Measures everything that a client can.
pub async fn measure(client: &Client, plan: &Plan, report: &mut Report) -> Result<()> {
    for template in ["base", "code-interpreter"] {
        for _ in 0..WARM_UP {
            delete(client, &create(client, template).await?.id).await?;
        }
        for _ in 0..plan.creates {
            one_create(client, template, report).await?;
        }
    }
    forks(client, plan.forks, report).await.context("forks")?;
    execs(client, plan.execs, report).await.context("execs")
}

/// Creates beside bare restores of the same template, in turns, so that a neighbour's load hits all of them alike.
pub async fn compare(
    client: &Client,
    plain: Option<&Client>,
    mut bare: Bare,
    rounds: u32,
    report: &mut Report,
) -> Result<()> {
    for client in [Some(client), plain].into_iter().flatten() {
        for _ in 0..WARM_UP {
            delete(client, &create(client, "base").await?.id).await?;
        }
    }
    bare.restore().await?;
    for _ in 0..rounds {
        report.sample("bare restore", "ms", bare.restore().await?);
        for (name, client) in [("API create", Some(client)), ("API create, no zygote", plain)] {
            let Some(client) = client else { continue };
            let began = Instant::now();
            let sandbox = create(client, "base").await?;
            report.sample(name, "ms", ms_since(began));
            delete(client, &sandbox.id).await?;
        }
    }
    for name in ["API create", "API create, no zygote"] {
        report.ratio(name, "bare restore");
    }
    Ok(())
}

/// Waits until a template's machines are forked from a zygote, as on a host that has been up for a
/// while.
pub async fn await_zygote(data_dir: &Path, template: &str, limit: Duration) -> Result<()> {
    let record = data_dir.join("store/zygotes").join(template).join("record.json");
    let deadline = Instant::now() + limit;
    while !record.exists() {
        ensure!(Instant::now() < deadline, "template `{template}` has no zygote");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Makes a sandbox.
pub async fn create(client: &Client, template: &str) -> Result<Sandbox> {
    let request = CreateSandbox {
        template: Some(template.to_owned()),
        ttl_seconds: Some(TTL_SECONDS),
        ..Default::default()
    };
    let key = uuid::Uuid::new_v4().to_string();
    client.create_sandbox(&request, &key).await.with_context(|| format!("create from {template}"))
}

/// Deletes a sandbox.
pub async fn delete(client: &Client, id: &SandboxId) -> Result<()> {
    client.delete_sandbox(id).await.with_context(|| format!("delete {id}"))
}

/// A create, its stages, and the time to the result of the canonical command.
async fn one_create(client: &Client, template: &str, report: &mut Report) -> Result<()> {
    let began = Instant::now();
    let sandbox = create(client, template).await?;
    report.sample(&format!("create {template}"), "ms", ms_since(began));
    let result = exec(client, &sandbox.id, "python -c 'print(2 ** 10)'").await?;
    ensure!(result.stdout.trim() == "1024", "the canonical command printed {:?}", result.stdout);
    report.sample(&format!("create {template} to 1024"), "ms", ms_since(began));
    let again = Instant::now();
    exec(client, &sandbox.id, "python -c 'print(2 ** 10)'").await?;
    report.sample(&format!("warm python in {template}"), "ms", ms_since(again));
    for (stage, took_us) in &sandbox.boot_stages_us {
        report.sample(&format!("create {template}: {stage}"), "us", *took_us as f64);
    }
    delete(client, &sandbox.id).await
}

async fn forks(client: &Client, count: u32, report: &mut Report) -> Result<()> {
    let parent = create(client, "base").await?;
    exec(client, &parent.id, DIRTY_64_MIB).await.context("dirty 64 MiB")?;
    for _ in 0..count {
        let began = Instant::now();
        let fresh = create(client, "base").await?;
        report.sample("create, beside forks", "ms", ms_since(began));
        exec(client, &fresh.id, "true").await?;
        report.sample("create, beside forks, sandbox answers", "ms", ms_since(began));
        delete(client, &fresh.id).await?;
        let began = Instant::now();
        let child = client.fork_sandbox(&parent.id, &ForkSandbox::default()).await.context("fork")?;
        report.sample("fork, 64 MiB dirty", "ms", ms_since(began));
        exec(client, &child.id, "true").await?;
        report.sample("fork, 64 MiB dirty, child answers", "ms", ms_since(began));
        if let Some(pause_ms) = child.pause_ms {
            report.sample("fork, 64 MiB dirty: parent's pause", "ms", pause_ms);
        }
        delete(client, &child.id).await?;
    }
    report.ratio("fork, 64 MiB dirty", "create, beside forks");
    report.ratio("fork, 64 MiB dirty, child answers", "create, beside forks, sandbox answers");
    delete(client, &parent.id).await
}

async fn execs(client: &Client, count: u32, report: &mut Report) -> Result<()> {
    let sandbox = create(client, "base").await?;
    for index in 0..count + WARM_UP {
        let began = Instant::now();
        let result = exec(client, &sandbox.id, "true").await?;
        let took_ms = ms_since(began);
        if index >= WARM_UP {
            let guest_ms = result.duration_us as f64 / 1000.0;
            report.sample("warm exec of true", "ms", took_ms);
            report.sample("warm exec of true, guest's own time", "ms", guest_ms);
            report.sample("warm exec of true, over the guest's own time", "ms", took_ms - guest_ms);
        }
    }
    delete(client, &sandbox.id).await
}

/// Runs a command that must succeed.
pub async fn exec(client: &Client, id: &SandboxId, cmd: &str) -> Result<ExecResult> {
    let request = ExecRequest { cmd: Some(cmd.to_owned()), ..Default::default() };
    let result = client.exec(id, &request).await.with_context(|| format!("run `{cmd}`"))?;
    ensure!(result.exit_code == 0, "`{cmd}` ended with {}: {}", result.exit_code, result.stderr);
    Ok(result)
}

/// Milliseconds since then.
pub fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}
