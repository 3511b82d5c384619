//! Requests through the edge that wake a sandbox: from light sleep beside the same request awake, from disk beside a bare
//! restore up to the result of its first command, in turns.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::api::{CreateSandbox, Keep, Sandbox};
use pandastack_types::{Residency, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::{delete, exec, ms_since};
use crate::bare::Bare;
use crate::report::Report;

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Samples of each figure.
    rounds: u32,
}

impl Plan {
    /// A few minutes on an emulated machine.
    pub const QUICK: Plan = Plan { rounds: 10 };
    /// For publication.
    pub const FULL: Plan = Plan { rounds: 40 };
}

/// Port of the server inside.
const PORT: u16 = 8000;
/// Longest wait for the server's start, and for light sleep.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A server of one small page.
const SERVE: &str = "mkdir -p /srv/www && echo hello > /srv/www/index.html && \
    nohup python3 -m http.server 8000 --bind 0.0.0.0 --directory /srv/www >/dev/null 2>&1 &";

const AWAKE: &str = "request through the edge, awake";
const LIGHT: &str = "the same, in light sleep";
const DISK: &str = "the same, on disk";
const BARE: &str = "bare restore to first exec";

/// Measures all of it.
pub async fn measure(
    client: &Client,
    address: &str,
    data_dir: &Path,
    plan: Plan,
    report: &mut Report,
) -> Result<()> {
    from_light_sleep(client, address, plan, report).await.context("light sleep")?;
    from_disk(client, address, data_dir, plan, report).await.context("sleep on disk")?;
    let light = report.median(AWAKE).map_or(f64::NAN, |awake| 1.5 * awake + 10.0);
    report.bar("request in light sleep, ms (1.5 of awake + 10 ms)", report.median(LIGHT), light);
    report.ratio_bar(DISK, BARE, 1.2);
    Ok(())
}

async fn from_light_sleep(client: &Client, address: &str, plan: Plan, report: &mut Report) -> Result<()> {
    let sandbox = serving(client, address, Some(1)).await?;
    for _ in 0..plan.rounds {
        let deadline = Instant::now() + PATIENCE;
        while client.get_sandbox(&sandbox.id).await?.residency != Some(Residency::Memory) {
            ensure!(Instant::now() < deadline, "the sandbox does not fall asleep");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        report.sample(LIGHT, "ms", request(address, &sandbox.id).await?);
        report.sample(AWAKE, "ms", request(address, &sandbox.id).await?);
    }
    delete(client, &sandbox.id).await
}

async fn from_disk(
    client: &Client,
    address: &str,
    data_dir: &Path,
    plan: Plan,
    report: &mut Report,
) -> Result<()> {
    let mut bare = Bare::open(data_dir, "base").await.context("prepare the bare engine")?;
    bare.restore_and_run().await?;
    let sandbox = serving(client, address, None).await?;
    for _ in 0..plan.rounds {
        client.hibernate_sandbox(&sandbox.id, Keep::Memory).await?;
        report.sample(DISK, "ms", request(address, &sandbox.id).await?);
        report.sample(BARE, "ms", bare.restore_and_run().await?);
    }
    delete(client, &sandbox.id).await
}

/// A sandbox whose server answers.
async fn serving(client: &Client, address: &str, idle_timeout_seconds: Option<u64>) -> Result<Sandbox> {
    let request_of =
        CreateSandbox { template: Some("base".to_owned()), idle_timeout_seconds, ..CreateSandbox::default() };
    let sandbox = client.create_sandbox(&request_of, &uuid::Uuid::new_v4().to_string()).await?;
    exec(client, &sandbox.id, SERVE).await?;
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = request(address, &sandbox.id).await {
        ensure!(Instant::now() < deadline, "the server inside does not answer: {error:#}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(sandbox)
}

/// Milliseconds of one request on a connection of its own, as a browser's first would be.
async fn request(address: &str, sandbox: &SandboxId) -> Result<f64> {
    let head = format!("GET / HTTP/1.1\r\nHost: {PORT}-{sandbox}.localhost\r\nConnection: close\r\n\r\n");
    let began = Instant::now();
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let took = ms_since(began);
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello\n"), "the edge answered: {answer}");
    Ok(took)
}
