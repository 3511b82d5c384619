//! Forks, snapshots, sleep and rollback: what keeping and copying a running machine costs.
//!
//! Yardsticks are taken in the same run: a bare restore of the template up to the result of its first command, and a plain
//! write of as many bytes followed by a sync.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use pandastack_client::Client;
use pandastack_types::api::{CreateSandbox, CreateSnapshot, ForkSandbox, ForkTree, Keep, Rollback, Sandbox};
use pandastack_types::{Residency, SandboxId};

use crate::api::{await_zygote, create, delete, exec, ms_since};
use crate::bare::Bare;
use crate::first_plot;
use crate::memory;
use crate::plot::Plot;
use crate::report::Report;

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Samples of each figure.
    pub rounds: u32,
    /// Sandboxes alive while memory is measured, and children of the largest tree.
    pub many: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan = Plan { rounds: 10, many: 100 };
    /// For publication.
    pub const FULL: Plan = Plan { rounds: 40, many: 100 };
}

const MIB: u64 = 1 << 20;
/// Children of the measured tree.
const TREE: u32 = 20;
/// Dirty memory whose pauses are plotted, and a template with so much: 512 MiB and 1 GiB are the largest there are.
const PLOTTED: [(&str, u64); 4] = [("base", 16), ("base", 64), ("base", 256), ("code-interpreter", 640)];
/// Commands run at once in the children of a tree.
const EXECS_AT_ONCE: usize = 16;
/// Longest wait for a template's zygote.
const ZYGOTE_MAX: Duration = Duration::from_secs(300);
/// Longest wait for light sleep.
const DOZE_MAX: Duration = Duration::from_secs(60);

/// Measures all of it, and draws how the pauses grow.
pub async fn measure(
    client: &Client,
    data_dir: &Path,
    plan: Plan,
    report: &mut Report,
    plots: &Path,
) -> Result<()> {
    for (template, _) in PLOTTED {
        // Made beside the first figures, it would take a processor from them.
        await_zygote(data_dir, template, ZYGOTE_MAX).await?;
    }
    let mut bare = Bare::open(data_dir, "base").await.context("prepare the bare engine")?;
    // Again and again, since the host is faster at some times than at others.
    yardsticks(client, &mut bare, plan, report).await?;
    forks(client, plan, report).await.context("forks")?;
    yardsticks(client, &mut bare, plan, report).await?;
    pauses(client, plan, report, plots).await.context("pauses")?;
    trees(client, plan, report).await.context("fork trees")?;
    snapshots(client, data_dir, plan, report).await.context("snapshots")?;
    for mib in [0, 64] {
        sleeps(client, &mut bare, data_dir, plan, mib, report).await.context("hibernate and wake")?;
    }
    yardsticks(client, &mut bare, plan, report).await?;
    dozes(client, plan, report).await.context("light sleep")?;
    rollbacks(client, plan, report).await.context("rollbacks")?;
    from_snapshot(client, plan, report).await.context("creates from a snapshot")?;
    disk_of_a_fork(client, data_dir, report).await.context("bytes on disk")?;
    memory::measure(client, data_dir, plan.many, report).await.context("memory")?;
    first_plot::measure(client, plan.rounds, report).await.context("first plots")?;
    compare(report);
    Ok(())
}

async fn yardsticks(client: &Client, bare: &mut Bare, plan: Plan, report: &mut Report) -> Result<()> {
    bare.restore().await?;
    delete(client, &create(client, "base").await?.id).await?;
    for _ in 0..plan.rounds {
        report.sample("bare restore", "ms", bare.restore().await?);
        report.sample("bare restore to first exec", "ms", bare.restore_and_run().await?);
        let began = Instant::now();
        let sandbox = create(client, "base").await?;
        report.sample("API create", "ms", ms_since(began));
        exec(client, &sandbox.id, "true").await?;
        let began = Instant::now();
        exec(client, &sandbox.id, "true").await?;
        report.sample("warm exec", "ms", ms_since(began));
        delete(client, &sandbox.id).await?;
    }
    Ok(())
}

/// A sandbox that holds that much written memory.
async fn dirtied(client: &Client, mib: u64) -> Result<Sandbox> {
    dirtied_of(client, "base", mib).await
}

/// Shared memory is limited to half of a guest's by default. Generating random bytes takes an
/// emulated guest a second per 20 MiB, so some are generated once and repeated: each page is
/// compared only with the base's page.
async fn dirtied_of(client: &Client, template: &str, mib: u64) -> Result<Sandbox> {
    let sandbox = create(client, template).await?;
    if mib > 0 {
        let write = format!(
            "mount -o remount,size=90% /dev/shm && head -c {} /dev/urandom > /dev/shm/seed && cd /dev/shm && \
             for part in $(seq {}); do cat seed; done > dirty && rm seed",
            16 * MIB,
            mib / 16
        );
        exec(client, &sandbox.id, &write).await?;
    }
    Ok(sandbox)
}

async fn forks(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let parent = dirtied(client, 64).await?;
    for _ in 0..plan.rounds {
        let began = Instant::now();
        let child = client.fork_sandbox(&parent.id, &ForkSandbox::default()).await?;
        report.sample("fork, 64 MiB dirty", "ms", ms_since(began));
        exec(client, &child.id, "true").await?;
        report.sample("fork, 64 MiB dirty, to first exec", "ms", ms_since(began));
        report.sample("parent's pause in that fork", "ms", child.pause_ms.unwrap_or_default());
        delete(client, &child.id).await?;
    }
    delete(client, &parent.id).await
}

async fn pauses(client: &Client, plan: Plan, report: &mut Report, plots: &Path) -> Result<()> {
    let mut plot =
        Plot::new("Pause of the sandbox in a fork and in a snapshot", "dirty memory, MiB", "pause, ms");
    for (template, mib) in PLOTTED {
        let parent = dirtied_of(client, template, mib).await?;
        let name = format!("pause of a fork, {mib} MiB dirty");
        for _ in 0..plan.rounds {
            let child = client.fork_sandbox(&parent.id, &ForkSandbox::default()).await?;
            let pause_ms = child.pause_ms.unwrap_or_default();
            report.sample(&name, "ms", pause_ms);
            plot.point("fork", mib as f64, pause_ms);
            delete(client, &child.id).await?;
            let taken = client.create_snapshot(&parent.id, &CreateSnapshot::default()).await?;
            let pause_ms = taken.pause_ms.unwrap_or_default();
            report.sample(&format!("pause of a snapshot, {mib} MiB dirty"), "ms", pause_ms);
            plot.point("snapshot", mib as f64, pause_ms);
            client.delete_snapshot(&taken.id).await?;
        }
        delete(client, &parent.id).await?;
    }
    plot.write(&plots.join("pause.svg"))
}

async fn trees(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let parent = dirtied(client, 64).await?;
    for (count, rounds) in [(TREE, (plan.rounds / 5).max(2)), (plan.many, 1)] {
        for _ in 0..rounds {
            let began = Instant::now();
            let tree = client.fork_tree(&parent.id, &ForkTree { count, metadata: None }).await?;
            report.sample(&format!("fork-tree of {count}"), "ms", ms_since(began));
            let ids: Vec<SandboxId> = tree.children.iter().map(|child| child.id.clone()).collect();
            let answers = futures::stream::iter(&ids).map(|id| exec(client, id, "true"));
            let answers: Vec<Result<_>> = answers.buffer_unordered(EXECS_AT_ONCE).collect().await;
            report.sample(&format!("fork-tree of {count}, all answer"), "ms", ms_since(began));
            let failed = tree.errors.len() + answers.iter().filter(|answer| answer.is_err()).count();
            report.sample(&format!("fork-tree of {count}: failures"), "count", failed as f64);
            for id in &ids {
                delete(client, id).await?;
            }
        }
    }
    delete(client, &parent.id).await
}

async fn snapshots(client: &Client, data_dir: &Path, plan: Plan, report: &mut Report) -> Result<()> {
    for _ in 0..plan.rounds {
        let sandbox = create(client, "base").await?;
        exec(client, &sandbox.id, "head -c 4096 /dev/urandom > /dev/shm/dirty; sync").await?;
        let idle = client.create_snapshot(&sandbox.id, &CreateSnapshot::default()).await?;
        let dirty = "head -c 67108864 /dev/urandom > /dev/shm/dirty; head -c 16777216 /dev/urandom > /srv/dirty; sync";
        exec(client, &sandbox.id, dirty).await?;
        let dirty_bytes = memory::dirty_bytes(data_dir, &sandbox.id)?;
        let began = Instant::now();
        let taken = client.create_snapshot(&sandbox.id, &CreateSnapshot::default()).await?;
        report.sample("snapshot, 64 MiB of memory and 16 of disk dirty", "ms", ms_since(began));
        report.sample("parent's pause in that snapshot", "ms", taken.pause_ms.unwrap_or_default());
        let written = taken.size_bytes as f64 / dirty_bytes as f64;
        report.sample("memory written by that snapshot / dirty", "ratio", written);
        report.sample(
            "memory written by a snapshot after one command",
            "MiB",
            idle.size_bytes as f64 / MIB as f64,
        );
        client.delete_snapshot(&idle.id).await?;
        client.delete_snapshot(&taken.id).await?;
        delete(client, &sandbox.id).await?;
    }
    Ok(())
}

async fn sleeps(
    client: &Client,
    bare: &mut Bare,
    data_dir: &Path,
    plan: Plan,
    mib: u64,
    report: &mut Report,
) -> Result<()> {
    for _ in 0..plan.rounds {
        let sandbox = dirtied(client, mib).await?;
        let before = allocated_bytes(data_dir)?;
        let began = Instant::now();
        client.hibernate_sandbox(&sandbox.id, Keep::Memory).await?;
        report.sample(&format!("hibernate, {mib} MiB dirty"), "ms", ms_since(began));
        machine_ended(client, &sandbox.id).await?;
        let written = allocated_bytes(data_dir)?.saturating_sub(before).max(MIB);
        report.sample(&format!("bytes of that sleep, {mib} MiB dirty"), "MiB", written as f64 / MIB as f64);
        let wrote_ms = write_and_sync(data_dir, written)?;
        report.sample(&format!("writing and syncing as much, {mib} MiB dirty"), "ms", wrote_ms);
        let began = Instant::now();
        exec(client, &sandbox.id, "true").await?;
        report.sample(&format!("wake from disk to first exec, {mib} MiB dirty"), "ms", ms_since(began));
        delete(client, &sandbox.id).await?;
        // Alternates with the wakes, so that other disk activity affects both alike.
        report.sample(&beside(mib), "ms", bare.restore_and_run().await?);
    }
    Ok(())
}

fn beside(mib: u64) -> String {
    format!("bare restore to first exec, beside sleeps of {mib} MiB")
}

/// Returns when the machine of a sandbox that fell asleep has ended: it ends after the response,
/// and the next request waits for that.
async fn machine_ended(client: &Client, sandbox: &SandboxId) -> Result<()> {
    client.hibernate_sandbox(sandbox, Keep::Memory).await?;
    Ok(())
}

/// Writes that many random bytes beside the platform's and waits for the disk.
fn write_and_sync(data_dir: &Path, bytes: u64) -> Result<f64> {
    let mut content = vec![0u8; usize::try_from(bytes)?];
    getrandom::fill(&mut content).context("get random bytes")?;
    let mut file = tempfile::tempfile_in(data_dir.join("store")).context("make a file in the store")?;
    let began = Instant::now();
    file.write_all(&content)?;
    file.sync_all()?;
    Ok(ms_since(began))
}

async fn dozes(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let request = CreateSandbox { idle_timeout_seconds: Some(1), ..CreateSandbox::default() };
    let sandbox = client.create_sandbox(&request, &uuid::Uuid::new_v4().to_string()).await?;
    // Measured next to a second sandbox that is also unused but stays awake.
    let awake = create(client, "base").await?;
    for round in 0..2 * plan.rounds {
        let deadline = Instant::now() + DOZE_MAX;
        while client.get_sandbox(&sandbox.id).await?.residency != Some(Residency::Memory) {
            ensure!(Instant::now() < deadline, "the sandbox does not fall asleep");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut both = [
            (&sandbox.id, "wake from light sleep to first exec"),
            (&awake.id, "exec in one that was idle as long, awake"),
        ];
        // The second measurement benefits from processes of the platform that are already awake.
        both.rotate_left((round % 2) as usize);
        for (id, figure) in both {
            let began = Instant::now();
            exec(client, id, "true").await?;
            report.sample(figure, "ms", ms_since(began));
        }
    }
    delete(client, &awake.id).await?;
    delete(client, &sandbox.id).await
}

async fn rollbacks(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let sandbox = create(client, "base").await?;
    let taken = client.create_snapshot(&sandbox.id, &CreateSnapshot::default()).await?;
    let request = Rollback { snapshot_id: Some(taken.id.clone()) };
    for _ in 0..plan.rounds {
        let began = Instant::now();
        client.rollback_sandbox(&sandbox.id, &request).await?;
        report.sample("rollback", "ms", ms_since(began));
        exec(client, &sandbox.id, "true").await?;
        report.sample("rollback to first exec", "ms", ms_since(began));
    }
    client.delete_snapshot(&taken.id).await?;
    delete(client, &sandbox.id).await
}

async fn disk_of_a_fork(client: &Client, data_dir: &Path, report: &mut Report) -> Result<()> {
    let parent = create(client, "base").await?;
    let before = allocated_bytes(data_dir)?;
    let child = client.fork_sandbox(&parent.id, &ForkSandbox::default()).await?;
    exec(client, &child.id, "head -c 1048576 /dev/urandom > /srv/own; sync").await?;
    let live = allocated_bytes(data_dir)?.saturating_sub(before);
    report.sample("disk of a live fork that wrote 1 MiB", "MiB", live as f64 / MIB as f64);
    client.hibernate_sandbox(&child.id, Keep::Memory).await?;
    machine_ended(client, &child.id).await?;
    let pages = memory_written(data_dir, &child.id)?;
    report.sample("memory that the same wrote when it hibernated", "MiB", pages as f64 / MIB as f64);
    let asleep = allocated_bytes(data_dir)?.saturating_sub(before);
    report.sample("disk of the same, hibernated", "MiB", asleep as f64 / MIB as f64);
    delete(client, &child.id).await?;
    delete(client, &parent.id).await
}

/// Pages that a sleeping sandbox wrote over its base, by the agent's own manifest of it.
fn memory_written(data_dir: &Path, id: &SandboxId) -> Result<u64> {
    let path = data_dir.join("store/sandboxes").join(id.as_str()).join("sleep/manifest.json");
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let manifest: serde_json::Value = serde_json::from_slice(&text)?;
    manifest["memory_bytes_written"].as_u64().context("the manifest does not say what was written")
}

/// Bytes allocated by the store's file system; extents shared between files count once.
fn allocated_bytes(data_dir: &Path) -> Result<u64> {
    rustix::fs::sync();
    let space = rustix::fs::statvfs(data_dir.join("store")).context("measure the store")?;
    Ok((space.f_blocks - space.f_bfree) * space.f_frsize)
}

/// Creates from one snapshot, again and again: the first are restored, later ones forked.
async fn from_snapshot(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let sandbox = create(client, "base").await?;
    let taken = client.create_snapshot(&sandbox.id, &CreateSnapshot::default()).await?;
    let request = CreateSandbox { from_snapshot: Some(taken.id.clone()), ..CreateSandbox::default() };
    for _ in 0..plan.rounds {
        let began = Instant::now();
        let made = client.create_sandbox(&request, &uuid::Uuid::new_v4().to_string()).await?;
        report.sample(
            &format!("create from a snapshot, by {}", made.boot_mode.unwrap_or_default()),
            "ms",
            ms_since(began),
        );
        exec(client, &made.id, "true").await?;
        delete(client, &made.id).await?;
    }
    client.delete_snapshot(&taken.id).await?;
    delete(client, &sandbox.id).await
}

/// The bars of `bench/README.md`.
fn compare(report: &mut Report) {
    for (name, to, at_most) in [
        ("fork, 64 MiB dirty", "API create", 1.5),
        ("parent's pause in that fork", "bare restore", 0.1),
        ("fork-tree of 20, all answer", "fork, 64 MiB dirty, to first exec", 20.0),
        ("parent's pause in that snapshot", "bare restore", 0.5),
        ("wake from disk to first exec, 0 MiB dirty", &beside(0), 1.2),
        ("wake from disk to first exec, 64 MiB dirty", &beside(64), 1.2),
        ("wake from light sleep to first exec", "exec in one that was idle as long, awake", 1.2),
        ("rollback to first exec", "wake from disk to first exec, 0 MiB dirty", 1.5),
    ] {
        report.ratio_bar(name, to, at_most);
    }
    for mib in [0, 64] {
        let name = format!("hibernate, {mib} MiB dirty");
        let wrote = report.median(&format!("writing and syncing as much, {mib} MiB dirty"));
        let at_most = wrote.map_or(f64::NAN, |wrote| 1.3 * wrote + 50.0);
        report.bar(&format!("{name}, in ms"), report.median(&name), at_most);
    }
    report.bar("fork-tree of 100: failures", report.highest("fork-tree of 100: failures"), 0.0);
    let written = report.median("memory written by that snapshot / dirty");
    report.bar("memory written by a snapshot / dirty", written, 1.02);
    let pss = report.median("memory of an idle sandbox (PSS)");
    report.bar("PSS of an idle sibling, 100 alive, in MiB", pss, 12.0);
    let live = report.median("disk of a live fork that wrote 1 MiB");
    report.bar("disk of a live fork that wrote 1 MiB, in MiB", live, 2.0);
    let pages = report.median("memory that the same wrote when it hibernated").unwrap_or(f64::NAN);
    let asleep = report.median("disk of the same, hibernated");
    report.bar("disk of the same, hibernated, in MiB", asleep, 1.0 + pages + 4.0);
}
