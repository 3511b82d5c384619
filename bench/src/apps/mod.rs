//! Apps: the cost of a request to a sleeping app over one to an awake app, the time from push to
//! live beyond the build itself, the overhead of the edge, and whether deployments fail requests.
//! Each part can be run alone.
//!
//! The baselines are measured in the same run, interleaved: a sandbox that wakes for a command, the
//! bare engine that restores the app's snapshot and requests its server, the same build by hand in
//! the serving machine, and direct requests to the machine's own address, past the edge.
//!
//! A push is what a user with a webhook does: `git push` to a repository over HTTP. The
//! repository's host notifies the app, which fetches the commit from there.

mod deployment;
mod plan;
mod pushes;

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use pandastack_client::Client;
use pandastack_types::api::{AppSettings, CreateSandbox, Keep, Sandbox};
use pandastack_types::{Residency, SandboxId};

use crate::api::{delete, exec, ms_since};
use crate::bare::{Bare, BareNetwork};
use crate::http::Connection;
use crate::report::Report;
use deployment::{POLL_INTERVAL, WAIT_MAX, create_app, deploy, machine_of};
pub use plan::{Plan, Setup};
use pushes::{BY_HAND, LIVE};

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Requests to an app asleep and awake
    Wakes,
    /// The way through the edge
    Edge,
    /// Deployments under load
    Deploys,
    /// Pushes of a Vite app
    Pushes,
}

/// A server of one small page.
const SERVER: &str = "require('http').createServer((_, answer) => answer.end('VERSION')).listen(process.env.PORT, '0.0.0.0');\n";
const PACKAGE: &str = r#"{"name": "bench", "version": "1.0.0", "scripts": {"start": "node server.js"}}"#;
/// Port of the apps.
const PORT: u16 = 8080;
/// Clients at once.
const CLIENTS: usize = 4;
/// Seconds without a request after which the app sleeps: the fewest that an app may have.
const IDLE_SECONDS: u64 = 5;

const AWAKE: &str = "first byte of a node app, awake";
const LIGHT: &str = "the same, in light sleep";
const DISK: &str = "the same, on disk";
const WAKE: &str = "sandbox in light sleep to first exec";
const BARE: &str = "bare restore of that to the first byte";
const EDGE: &str = "requests a second through the edge";
const STRAIGHT: &str = "requests a second straight to the machine";
const SHARE: &str = "requests a second through the edge, of those straight in the same turn";
const FAILED: &str = "requests that failed during deployments";

/// Measures those parts, or all.
pub async fn measure(setup: &Setup<'_>, plan: Plan, parts: &[Part], report: &mut Report) -> Result<()> {
    let wanted = |part: &Part| parts.is_empty() || parts.contains(part);
    let of_node: Vec<_> = [Part::Wakes, Part::Edge, Part::Deploys].into_iter().filter(wanted).collect();
    if !of_node.is_empty() {
        node(setup, plan, &of_node, report).await?;
    }
    if wanted(&Part::Pushes) {
        pushes::measure(setup, plan, report).await.context("pushes")?;
    }
    compare(report);
    Ok(())
}

/// Measures those parts of a small server.
async fn node(setup: &Setup<'_>, plan: Plan, parts: &[Part], report: &mut Report) -> Result<()> {
    let name = format!("bench-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let settings = AppSettings { idle_timeout_seconds: Some(IDLE_SECONDS), ..AppSettings::default() };
    create_app(setup, &name, settings).await?;
    deploy(setup, &name, node_source("0")?).await?;
    if parts.contains(&Part::Wakes) {
        wakes(setup, &name, plan, report).await.context("wakes")?;
    }
    if parts.contains(&Part::Edge) {
        edge_throughput(setup, &name, plan, report).await.context("the way through the edge")?;
    }
    if parts.contains(&Part::Deploys) {
        deploys(setup, &name, plan, report).await.context("deployments under load")?;
    }
    Ok(setup.client.delete_app(&name).await?)
}

fn compare(report: &mut Report) {
    let light = report.median(WAKE).map_or(f64::NAN, |wake| wake + 15.0);
    report.bar("first byte in light sleep, ms (a sandbox's wake + 15 ms)", report.median(LIGHT), light);
    report.ratio_bar(DISK, BARE, 1.2);
    // Per round: other load on the host changes slowly, so it affects both ways of one round alike.
    let lost = report.median(SHARE).map(|share| 1.0 - share);
    report.bar("share of requests a second that the edge costs", lost, 0.1);
    let by_hand = report.median(BY_HAND).map_or(f64::NAN, |by_hand| 1.2 * by_hand + 5.0);
    report.bar("push to live, s (1.2 of the build by hand + 5 s)", report.median(LIVE), by_hand);
    report.bar(FAILED, report.highest(FAILED), 0.0);
}

/// Requests to the app asleep and awake, beside a sandbox's wake and a bare restore.
async fn wakes(setup: &Setup<'_>, name: &str, plan: Plan, report: &mut Report) -> Result<()> {
    let machine = machine_of(setup, name).await?;
    let beside = create_idle(setup.client).await?;
    let mut bare = Bare::of_sleeper(setup.data_dir, &machine).await.context("prepare the bare engine")?;
    let network = BareNetwork::open().await.context("make the bare engine's network")?;
    let measured =
        wake_in_turns(setup, name, plan, report, (&machine, &beside.id), (&mut bare, &network)).await;
    network.close().await?;
    measured?;
    delete(setup.client, &beside.id).await
}

async fn wake_in_turns(
    setup: &Setup<'_>,
    name: &str,
    plan: Plan,
    report: &mut Report,
    (machine, beside): (&SandboxId, &SandboxId),
    (bare, network): (&mut Bare, &BareNetwork),
) -> Result<()> {
    for _ in 0..plan.wakes {
        wait_for_light_sleep(setup.client, beside).await?;
        let began = Instant::now();
        exec(setup.client, beside, "true").await?;
        report.sample(WAKE, "ms", ms_since(began));
        wait_for_light_sleep(setup.client, machine).await?;
        report.sample(LIGHT, "ms", first_byte_ms(setup, name).await?);
        report.sample(AWAKE, "ms", first_byte_ms(setup, name).await?);
        setup.client.hibernate_sandbox(machine, Keep::Memory).await?;
        report.sample(BARE, "ms", bare.restore_and_ask(network, PORT).await?);
        report.sample(DISK, "ms", first_byte_ms(setup, name).await?);
    }
    Ok(())
}

async fn create_idle(client: &Client) -> Result<Sandbox> {
    let (template, idle_timeout_seconds) = (Some("base".to_owned()), Some(1));
    let request = CreateSandbox { template, idle_timeout_seconds, ..CreateSandbox::default() };
    Ok(client.create_sandbox(&request, &uuid::Uuid::new_v4().to_string()).await?)
}

/// Waits for light sleep.
async fn wait_for_light_sleep(client: &Client, machine: &SandboxId) -> Result<()> {
    let deadline = Instant::now() + WAIT_MAX;
    while client.get_sandbox(machine).await?.residency != Some(Residency::Memory) {
        ensure!(Instant::now() < deadline, "{machine} does not fall asleep");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Milliseconds to the first byte of an answer, on a connection of its own.
async fn first_byte_ms(setup: &Setup<'_>, name: &str) -> Result<f64> {
    let began = Instant::now();
    let answer = Connection::open(setup.edge, &host_of(name)).await?.get().await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.body);
    Ok(answer.first_byte_at.duration_since(began).as_secs_f64() * 1000.0)
}

fn host_of(name: &str) -> String {
    format!("{name}.localhost")
}

/// Throughput of a few clients, through the edge and direct, interleaved.
async fn edge_throughput(setup: &Setup<'_>, name: &str, plan: Plan, report: &mut Report) -> Result<()> {
    let machine = machine_of(setup, name).await?;
    let straight = crate::memory::address(setup.data_dir, setup.network, &machine)?;
    let straight = format!("{straight}:{PORT}");
    first_byte_ms(setup, name).await.context("wake it")?;
    // The first turn warms caches and the server's compiler up.
    for turn in 0..=plan.load_turns {
        let (edge, direct) = if turn % 2 == 0 {
            let edge = requests_a_second(setup.edge, name, plan).await?;
            (edge, requests_a_second(&straight, name, plan).await?)
        } else {
            let direct = requests_a_second(&straight, name, plan).await?;
            (requests_a_second(setup.edge, name, plan).await?, direct)
        };
        if turn > 0 {
            report.sample(EDGE, "1/s", edge);
            report.sample(STRAIGHT, "1/s", direct);
            report.sample(SHARE, "ratio", edge / direct);
        }
    }
    Ok(())
}

async fn requests_a_second(address: &str, name: &str, plan: Plan) -> Result<f64> {
    let until = Instant::now() + Duration::from_secs(plan.load_seconds);
    let clients = (0..CLIENTS).map(|_| count_until(address, name, until));
    let began = Instant::now();
    let made: u64 = futures::future::try_join_all(clients).await?.into_iter().sum();
    Ok(made as f64 / began.elapsed().as_secs_f64())
}

async fn count_until(address: &str, name: &str, until: Instant) -> Result<u64> {
    let mut connection = Connection::open(address, &host_of(name)).await?;
    let mut made = 0;
    while Instant::now() < until {
        let answer = connection.get().await?;
        ensure!(answer.status == 200, "status {}: {}", answer.status, answer.body);
        made += 1;
    }
    Ok(made)
}

/// Deployments one after another while a few clients send requests without a pause.
async fn deploys(setup: &Setup<'_>, name: &str, plan: Plan, report: &mut Report) -> Result<()> {
    let load = Load::default();
    let work = async {
        let worked = deploy_often(setup, name, plan.deploys, report).await;
        load.done.set(true);
        worked
    };
    let clients = (0..CLIENTS).map(|_| load.ask(setup, name));
    let (worked, _) = futures::future::join(work, futures::future::join_all(clients)).await;
    worked?;
    report.sample("requests during deployments", "", f64::from(load.made.get()));
    report.sample(FAILED, "", f64::from(load.failed.get()));
    Ok(())
}

async fn deploy_often(setup: &Setup<'_>, name: &str, count: u32, report: &mut Report) -> Result<()> {
    for round in 1..=count {
        let began = Instant::now();
        deploy(setup, name, node_source(&round.to_string())?).await?;
        report.sample("node, upload to live, under load", "s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

#[derive(Default)]
struct Load {
    done: Cell<bool>,
    made: Cell<u32>,
    failed: Cell<u32>,
}

impl Load {
    /// Sends requests until the deployments are over. A failed connection is counted and replaced.
    async fn ask(&self, setup: &Setup<'_>, name: &str) {
        let mut connection = None;
        while !self.done.get() {
            self.made.set(self.made.get() + 1);
            let outcome = ask_once(&mut connection, setup.edge, name).await;
            if let Err(error) = outcome {
                eprintln!("a request failed: {error:#}");
                self.failed.set(self.failed.get() + 1);
                connection = None;
            }
        }
    }
}

async fn ask_once(kept: &mut Option<Connection>, address: &str, name: &str) -> Result<()> {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open(address, &host_of(name)).await?),
    };
    let answer = connection.get().await?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.body);
    Ok(())
}

fn node_source(version: &str) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let server = SERVER.replace("VERSION", version);
    for (name, content) in [("package.json", PACKAGE), ("server.js", server.as_str())] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content.as_bytes())?;
    }
    Ok(archive.into_inner()?.finish()?)
}
