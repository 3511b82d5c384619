//! Managed databases: the cost of creating, branching, waking and restoring them, and of the way through the
//! edge.
//!
//! Clients are `psql` and `pgbench`, as people use them. Yardsticks are taken in the same run: a create of
//! `base`, a bare restore of the database's saved state, and `pgbench` straight to the machine's own address,
//! past the edge.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::DatabaseId;
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, Database, DatabaseConnection, DatabaseQuery, DatabaseRows,
};
use tokio::process::Command;

use crate::api::{await_zygote, create, delete, ms_since};
use crate::bare::{Bare, BareNetwork};
use crate::report::Report;

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Creates beside those of `base`
    Creates,
    /// The way through the edge
    Edge,
    /// Branches of a database of some size
    Branches,
    /// Wakes by a connection
    Wakes,
    /// Commits to restorable, and a drill
    Backups,
}

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Creates, each beside one of `base`.
    pub creates: u32,
    /// MiB of a database that is branched.
    pub branched_mib: u32,
    /// Branches and wakes.
    pub rounds: u32,
    /// Seconds of each `pgbench`, and how often both ways take turns.
    pub pgbench_seconds: u32,
    pub pgbench_turns: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan =
        Plan { creates: 10, branched_mib: 256, rounds: 5, pgbench_seconds: 5, pgbench_turns: 8 };
    /// For publication.
    pub const FULL: Plan =
        Plan { creates: 50, branched_mib: 1024, rounds: 20, pgbench_seconds: 20, pgbench_turns: 10 };
}

/// Longest wait for background work.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const TPS_EDGE: &str = "pgbench, 4 clients, through the edge";
const TPS_STRAIGHT: &str = "pgbench, 4 clients, straight";
const QUERIES_EDGE: &str = "single queries through the edge";
const QUERIES_STRAIGHT: &str = "single queries straight";
/// Measured in two rounds, each way first once: the first also pays for the server's housekeeping
/// of earlier work.
const TPS_LOST: &str = "share of transactions that the edge costs";
const BARE: &str = "bare restore of what it sleeps on";
const BARE_ASKED: &str = "bare restore of what it sleeps on to first SELECT 1";
const WAKE: &str = "wake to first SELECT 1";
const AWAKE: &str = "SELECT 1 awake";
const MIB: u64 = 1024 * 1024;

/// Inputs of a measurement.
pub struct Setup<'a> {
    /// The platform.
    pub client: &'a Client,
    /// Data directory of the platform.
    pub data_dir: &'a Path,
    /// First address of its network.
    pub network: std::net::Ipv4Addr,
    /// `pgbench`.
    pub pgbench: PathBuf,
}

/// Measures the given parts; all of them if `parts` is empty.
pub async fn measure(setup: &Setup<'_>, plan: Plan, parts: &[Part], report: &mut Report) -> Result<()> {
    let wanted = |part: Part| parts.is_empty() || parts.contains(&part);
    for template in ["base", "postgres-16"] {
        await_zygote(setup.data_dir, template, WAIT_MAX).await?;
    }
    if wanted(Part::Creates) {
        creates(setup, plan, report).await.context("creates")?;
    }
    let database = new(setup.client).await?;
    if wanted(Part::Edge) {
        edge_throughput(setup, &database, plan, report).await.context("the way through the edge")?;
    }
    if wanted(Part::Branches) {
        branches(setup, &database, plan, report).await.context("branches")?;
    }
    if wanted(Part::Wakes) {
        wakes(setup, &database, plan, report).await.context("wakes")?;
    }
    if wanted(Part::Backups) {
        backups(setup, &database, plan, report).await.context("backups")?;
    }
    setup.client.delete_database(&database.id).await?;
    compare(report);
    Ok(())
}

fn compare(report: &mut Report) {
    let create = "create of base, beside databases";
    report.ratio_bar("database: create to first SELECT 1 through TLS", create, 10.0);
    report.ratio_bar("database: branch", "database: create", 2.0);
    report.ratio_bar("disk taken by a branch", "disk taken by its original", 0.02);
    report.ratio_bar(WAKE, BARE_ASKED, 1.2);
    report.bar(TPS_LOST, report.median(TPS_LOST), 0.05);
    let ms = |rate: f64| 1000.0 / rate;
    let added = report.median(QUERIES_EDGE).zip(report.median(QUERIES_STRAIGHT));
    let added = added.map(|(through, straight)| ms(through) - ms(straight));
    report.bar("ms that the edge adds to a query", added, 1.0);
    report.bar("commit to restorable, s", report.median("commit to restorable").map(ms_to_s), 5.0);
}

fn ms_to_s(ms: f64) -> f64 {
    ms / 1000.0
}

async fn creates(setup: &Setup<'_>, plan: Plan, report: &mut Report) -> Result<()> {
    let client = setup.client;
    for _ in 0..plan.creates {
        let began = Instant::now();
        let sandbox = create(client, "base").await?;
        report.sample("create of base, beside databases", "ms", ms_since(began));
        delete(client, &sandbox.id).await?;
        let began = Instant::now();
        let database = new(client).await?;
        report.sample("database: create", "ms", ms_since(began));
        select(&connection(&database)?.connection_url).await?;
        report.sample("database: create to first SELECT 1 through TLS", "ms", ms_since(began));
        client.delete_database(&database.id).await?;
    }
    Ok(())
}

/// `pgbench` through the edge and straight to the machine, in turns: its own transactions by as many clients as keep the
/// machine busy, and single queries one after another.
async fn edge_throughput(
    setup: &Setup<'_>,
    database: &Database,
    plan: Plan,
    report: &mut Report,
) -> Result<()> {
    let through = connection(database)?.connection_url.clone();
    let straight = straight_url(setup, database)?;
    setup.pgbench(&through, &["--initialize", "--quiet", "--scale=10"]).await?;
    let seconds = plan.pgbench_seconds.to_string();
    // pgbench's small tables are vacuumed before each run, so that no run pays for the rows of an
    // earlier one.
    let transactions = ["--client=4", "--time", &seconds];
    let queries = ["--select-only", "--protocol=prepared", "--no-vacuum", "--time", &seconds];
    let mut rates = Vec::new();
    for turn in 0..plan.pgbench_turns {
        let mut ways = [(&through, TPS_EDGE, QUERIES_EDGE), (&straight, TPS_STRAIGHT, QUERIES_STRAIGHT)];
        if turn % 2 == 1 {
            ways.reverse();
        }
        for (url, tps, _) in ways {
            let rate = setup.rate(url, &transactions).await?;
            report.sample(tps, "1/s", rate);
            rates.push((tps, rate));
        }
        if turn % 2 == 1 {
            let of = |name| rates.iter().filter(|(tps, _)| *tps == name).map(|(_, rate)| rate).sum::<f64>();
            report.sample(TPS_LOST, "", 1.0 - of(TPS_EDGE) / of(TPS_STRAIGHT));
            rates.clear();
        }
        for (url, _, single) in ways {
            report.sample(single, "1/s", setup.rate(url, &queries).await?);
        }
    }
    Ok(())
}

async fn branches(setup: &Setup<'_>, database: &Database, plan: Plan, report: &mut Report) -> Result<()> {
    let client = setup.client;
    let empty = free_bytes(setup)?;
    // A row takes a page: nothing is compressed.
    let rows = u64::from(plan.branched_mib) * MIB / 8192;
    query(client, &database.id, "CREATE TABLE filler (body text)").await?;
    query(client, &database.id, "ALTER TABLE filler ALTER body SET STORAGE PLAIN").await?;
    let fill = format!("INSERT INTO filler SELECT repeat('x', 8000) FROM generate_series(1, {rows})");
    query(client, &database.id, &fill).await?;
    query(client, &database.id, "CHECKPOINT").await?;
    report.sample("disk taken by its original", "MiB", mib(empty.saturating_sub(free_bytes(setup)?)));
    for _ in 0..plan.rounds {
        let before = free_bytes(setup)?;
        let began = Instant::now();
        let branch = client.branch_database(&database.id, &CloneDatabase::default()).await?;
        report.sample("database: branch", "ms", ms_since(began));
        report.sample("disk taken by a branch", "MiB", mib(before.saturating_sub(free_bytes(setup)?)));
        client.delete_database(&branch.id).await?;
    }
    query(client, &database.id, "DROP TABLE filler").await.map(drop)
}

async fn wakes(setup: &Setup<'_>, database: &Database, plan: Plan, report: &mut Report) -> Result<()> {
    let machine = database.sandbox_id.as_ref().context("the database has no machine")?;
    let mut bare = Bare::of_sleeper(setup.data_dir, machine).await.context("prepare the bare engine")?;
    let network = BareNetwork::open().await.context("make the bare engine's network")?;
    let measured = wake_in_turns(setup, database, plan, report, (&mut bare, &network)).await;
    network.close().await?;
    measured
}

/// Measures wakes of the bare engine and of the platform in turns. The bare engine restores the same state
/// and answers the same query: the first session of a machine that was just restored takes several times as
/// long as any later one, since all code that it runs is translated again.
async fn wake_in_turns(
    setup: &Setup<'_>,
    database: &Database,
    plan: Plan,
    report: &mut Report,
    (bare, network): (&mut Bare, &BareNetwork),
) -> Result<()> {
    let through = &connection(database)?.connection_url;
    for _ in 0..plan.rounds {
        setup.client.pause_database(&database.id).await?;
        // Its machine ends after the response; a second pause waits for that.
        setup.client.pause_database(&database.id).await?;
        report.sample(BARE, "ms", bare.restore().await?);
        let ask = async |address: &str| select(&url_at(address, database)?).await;
        report.sample(BARE_ASKED, "ms", bare.restore_and_reach(network, ask).await?);
        for name in [WAKE, AWAKE] {
            let began = Instant::now();
            select(through).await?;
            report.sample(name, "ms", ms_since(began));
        }
    }
    Ok(())
}

async fn backups(setup: &Setup<'_>, database: &Database, plan: Plan, report: &mut Report) -> Result<()> {
    let client = setup.client;
    let deadline = Instant::now() + WAIT_MAX;
    while !client.database_backups(&database.id).await?.healthy {
        ensure!(Instant::now() < deadline, "there is no base backup");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // The first change also waits for earlier writes.
    restorable(client, &database.id, "CREATE TABLE last (n int)").await?;
    for _ in 0..plan.rounds {
        let took_ms = restorable(client, &database.id, "INSERT INTO last VALUES (1)").await?;
        report.sample("commit to restorable", "ms", took_ms);
    }
    let drill = client.drill_database(&database.id).await?;
    ensure!(drill.ok, "the drill failed: {:?}", drill.error);
    report.sample("restore drill", "ms", drill.took_ms as f64);
    Ok(())
}

/// Commits something; milliseconds until the archive has it.
async fn restorable(client: &Client, id: &DatabaseId, sql: &str) -> Result<f64> {
    query(client, id, sql).await?;
    let began = Instant::now();
    let end = query(client, id, "SELECT pg_current_wal_lsn()").await?;
    let end = end.rows.first().and_then(|row| position(row.first()?.as_str()?));
    let end = end.context("the server did not say how long its log is")?;
    loop {
        let archived = client.database_backups(id).await?.last_archived_wal;
        if archived.as_deref().and_then(position).is_some_and(|archived| archived >= end) {
            return Ok(ms_since(began));
        }
        ensure!(began.elapsed() < WAIT_MAX, "a commit was not archived");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A position of the log, which is written as two halves.
fn position(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    Some((u64::from_str_radix(high, 16).ok()? << 32) | u64::from_str_radix(low, 16).ok()?)
}

async fn new(client: &Client) -> Result<Database> {
    let database = client.create_database(&CreateDatabase::default()).await?;
    Ok(client.get_database(&database.id).await?)
}

fn connection(database: &Database) -> Result<&DatabaseConnection> {
    database.connection.as_ref().context("the database has no address")
}

async fn select(url: &str) -> Result<()> {
    let printed = run(Command::new("psql").args([url, "-XAtq", "-c", "SELECT 1"])).await?;
    ensure!(printed.stdout == b"1\n", "psql printed {:?}", String::from_utf8_lossy(&printed.stdout));
    Ok(())
}

async fn query(client: &Client, id: &DatabaseId, sql: &str) -> Result<DatabaseRows> {
    let timeout_ms = Some(u64::try_from(WAIT_MAX.as_millis())?);
    let request = DatabaseQuery { sql: sql.to_owned(), timeout_ms, ..DatabaseQuery::default() };
    Ok(client.query_database(id, &request).await?)
}

/// The machine's own address on this host, past the edge. TLS ends at the edge, so there is none here.
fn straight_url(setup: &Setup<'_>, database: &Database) -> Result<String> {
    let machine = database.sandbox_id.as_ref().context("the database has no machine")?;
    let address = crate::memory::address(setup.data_dir, setup.network, machine)?;
    url_at(&address.to_string(), database)
}

fn url_at(address: &str, database: &Database) -> Result<String> {
    let DatabaseConnection { username, password, database, .. } = connection(database)?;
    Ok(format!("postgresql://{username}:{password}@{address}:5432/{database}?sslmode=disable"))
}

impl Setup<'_> {
    async fn pgbench(&self, url: &str, options: &[&str]) -> Result<Output> {
        run(Command::new(&self.pgbench).args(options).arg(url)).await
    }

    /// Transactions a second.
    async fn rate(&self, url: &str, options: &[&str]) -> Result<f64> {
        let printed = String::from_utf8(self.pgbench(url, options).await?.stdout)?;
        let rate = printed.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rest| rest.split(' ').next()).context("pgbench printed no rate")?;
        Ok(rate.parse()?)
    }
}

async fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().await.with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, said.trim());
    Ok(output)
}

/// Room on the platform's store.
fn free_bytes(setup: &Setup<'_>) -> Result<u64> {
    rustix::fs::sync();
    let room = rustix::fs::statvfs(setup.data_dir.join("store")).context("measure the store")?;
    Ok(room.f_bavail * room.f_frsize)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}
