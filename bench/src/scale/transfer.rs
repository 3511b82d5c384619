//! Uploads and downloads a large file and samples the servers' memory, which must not grow with the
//! file.

use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;

use super::footprint::PlatformPaths;
use super::sandbox::create;
use crate::api::{delete, exec};
use crate::plot::Plot;
use crate::report::Report;

const MIB: usize = 1 << 20;
/// Interval between two samples of the servers' memory.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Growth allowed for a server, in MiB: buffers of one transfer of any length.
const GROWTH_MIB: f64 = 16.0;
const FILE: &str = "/srv/large";

/// Uploads and downloads one file of that size.
pub async fn measure(
    client: &Client,
    platform: &PlatformPaths,
    mib: u32,
    report: &mut Report,
    plots: &Path,
) -> Result<()> {
    let source = make_file(mib)?;
    let sandbox = create(client).await?;
    exec(client, &sandbox.id, "true").await?;
    let before = [platform.server_mib("control")?, platform.server_mib("agent")?];
    let done = AtomicBool::new(false);
    let transfers = async {
        let outcome = there_and_back(client, &sandbox.id, source.path(), mib, report).await;
        done.store(true, Ordering::Relaxed);
        outcome
    };
    let (outcome, samples) = tokio::join!(transfers, watch(platform, &done));
    outcome?;
    let mut plot = Plot::new("Memory of the servers during a large file", "s", "MiB");
    for (index, role) in ["control", "agent"].into_iter().enumerate() {
        for (at, now) in samples.iter().map(|(at, now)| (*at, now[index])) {
            plot.point(role, at, now);
            report.sample(&format!("memory of {role} during {mib} MiB"), "MiB", now);
        }
        let most = report.highest(&format!("memory of {role} during {mib} MiB"));
        let growth = most.map(|most| most - before[index]);
        report.bar(&format!("growth of {role} by {mib} MiB up and down, in MiB"), growth, GROWTH_MIB);
    }
    delete(client, &sandbox.id).await?;
    plot.write(&plots.join("file.svg"))
}

/// A file in which no two mebibytes are alike.
fn make_file(mib: u32) -> Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("make the file")?;
    let mut block = vec![0; MIB];
    getrandom::fill(&mut block).context("get random bytes")?;
    for nth in 0..mib {
        block[..4].copy_from_slice(&nth.to_le_bytes());
        file.write_all(&block).context("fill the file")?;
    }
    file.flush().context("fill the file")?;
    Ok(file)
}

async fn there_and_back(
    client: &Client,
    id: &SandboxId,
    source: &Path,
    mib: u32,
    report: &mut Report,
) -> Result<()> {
    let body = tokio::fs::File::open(source).await.context("open the file")?;
    let began = Instant::now();
    let written = client.write_file(id, FILE, body).await.context("send the file")?;
    report.sample(&format!("{mib} MiB up"), "MiB/s", f64::from(mib) / began.elapsed().as_secs_f64());
    ensure!(written.bytes == u64::from(mib) * MIB as u64, "{} bytes were written", written.bytes);
    let began = Instant::now();
    let mut down = client.read_file(id, FILE).await.context("fetch the file")?;
    let mut expected = BufReader::new(std::fs::File::open(source).context("open the file")?);
    let (mut total, mut kept) = (0, Vec::new());
    while let Some(bytes) = down.next().await.context("fetch the file")? {
        kept.resize(bytes.len(), 0);
        expected.read_exact(&mut kept).context("the file came back longer")?;
        ensure!(bytes == kept, "the file came back changed near byte {total}");
        total += bytes.len();
    }
    report.sample(&format!("{mib} MiB down"), "MiB/s", f64::from(mib) / began.elapsed().as_secs_f64());
    ensure!(total == mib as usize * MIB, "{total} bytes came back");
    Ok(())
}

/// Memory of control and agent over time, until it is done.
async fn watch(platform: &PlatformPaths, done: &AtomicBool) -> Vec<(f64, [f64; 2])> {
    let began = Instant::now();
    let mut samples = Vec::new();
    while !done.load(Ordering::Relaxed) {
        if let (Ok(control), Ok(agent)) = (platform.server_mib("control"), platform.server_mib("agent")) {
            samples.push((began.elapsed().as_secs_f64(), [control, agent]));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    samples
}
