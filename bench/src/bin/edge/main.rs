//! The edge and nginx in front of the same upstream on loopback, in turns.
//!
//! The figure is the proxy's own processor time per request, because load, upstream and proxy share the processors; a
//! proxy that is slow only because the load generator took its core is not measured as slow. Run by
//! `cargo xtask bench edge`; prints a table and writes every sample.

mod load;
mod nginx;
mod proxy;
mod servers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use load::{Requests, Round};
use proxy::Proxy;

/// Connections of the load generator, as in the published target.
const CONNECTIONS: usize = 64;
/// WebSockets held open, as in the published target.
const WEBSOCKETS: usize = 10_000;
/// Open files of each process.
const DESCRIPTORS: u64 = 65_536;
/// Descriptors for everything except WebSockets.
const OTHER_DESCRIPTORS: u64 = 512;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Measure
    Run {
        /// The nginx program
        #[arg(long)]
        nginx: PathBuf,
        /// Rounds of each proxy
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Seconds of each round
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// WebSockets to hold open; 0 for none
        #[arg(long, default_value_t = WEBSOCKETS)]
        websockets: usize,
        /// Directory for results
        #[arg(long)]
        results: Option<PathBuf>,
    },
    /// The upstream, as a process of its own
    Upstream,
    /// The edge, as a process of its own
    Edge {
        #[arg(long)]
        access_log: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Upstream => servers::upstream(),
        Command::Edge { access_log } => servers::edge(&access_log),
        Command::Run { nginx, rounds, seconds, websockets, results } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(run(nginx, rounds, Duration::from_secs(seconds), websockets, results))
        }
    }
}

async fn run(
    nginx: PathBuf,
    rounds: usize,
    length: Duration,
    websockets: usize,
    results: Option<PathBuf>,
) -> Result<()> {
    let began_at = jiff::Timestamp::now();
    // The edge has two descriptors for each.
    let websockets =
        websockets.min((allow_many_descriptors()?.saturating_sub(OTHER_DESCRIPTORS) / 2) as usize);
    let scratch = tempfile::tempdir().context("a directory for the servers")?;
    let upstream = proxy::start_upstream()?;
    let edge = Proxy::edge(scratch.path(), upstream.port)?;
    let nginx = Proxy::nginx(&nginx, scratch.path(), upstream.port)?;
    let proxies = [&nginx, &edge];
    let mut samples = Vec::new();
    for what in [Requests::Small, Requests::Large] {
        // Warm up: connections, caches, and nginx's first pages.
        for proxy in proxies {
            load::round(proxy, what, CONNECTIONS, Duration::from_secs(1)).await?;
        }
        for _ in 0..rounds {
            for proxy in proxies {
                samples.push(load::round(proxy, what, CONNECTIONS, length).await?);
            }
        }
    }
    report(&samples);
    let mut held = None;
    if websockets > 0 {
        let bytes = load::hold_websockets(&edge, websockets).await?;
        let mib = bytes as f64 / f64::from(1 << 20);
        let all = mib * WEBSOCKETS as f64 / websockets as f64;
        println!("{websockets} idle WebSockets: {mib:.0} MiB, so {all:.0} MiB for {WEBSOCKETS}");
        held = Some(Held { websockets, bytes });
    }
    let measured = Measured { began_at, rounds: samples, held };
    match results {
        Some(results) => measured.write(&results),
        None => Ok(()),
    }
}

/// All results of one run, as stored.
#[derive(Serialize)]
struct Measured {
    began_at: jiff::Timestamp,
    rounds: Vec<Round>,
    held: Option<Held>,
}

/// Memory that idle WebSockets cost the edge.
#[derive(Serialize)]
struct Held {
    websockets: usize,
    bytes: u64,
}

impl Measured {
    fn write(&self, results: &Path) -> Result<()> {
        std::fs::create_dir_all(results)?;
        let path = results.join(format!("edge-{}.json", self.began_at.as_second()));
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {}", path.display()))?;
        eprintln!("raw samples: {}", path.display());
        Ok(())
    }
}

/// Raises the limit of open files of this process and its children to the maximum; returns the
/// limit.
fn allow_many_descriptors() -> Result<u64> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    // Only some may have more than they were started with.
    for wanted in [DESCRIPTORS.max(most), most] {
        let limit = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return Ok(wanted);
        }
    }
    bail!("the limit of open files could not be raised to {most}")
}

/// Prints both proxies side by side: processor time as the total over the total work, so that each
/// round counts by its work; latencies, which cannot be summed, as the median of the rounds.
fn report(samples: &[Round]) {
    println!("| | nginx | edge | ratio |\n|---|---|---|---|");
    let row = |name: &str, what: Requests, value: &dyn Fn(&[&Round]) -> f64| {
        let of = |proxy: &str| {
            let rounds: Vec<_> =
                samples.iter().filter(|round| round.proxy == proxy && round.what == what).collect();
            value(&rounds)
        };
        let (nginx, edge) = (of("nginx"), of("edge"));
        println!("| {name} | {nginx:.2} | {edge:.2} | {:.2} |", edge / nginx);
    };
    let requests = |round: &Round| round.requests as f64;
    let gib = |round: &Round| round.bytes as f64 / (1u64 << 30) as f64;
    row("CPU per request, us", Requests::Small, &|rounds| cpu_us_per(rounds, requests));
    row("p50, ms", Requests::Small, &|rounds| median(rounds, |round| round.p50_ms));
    row("p99, ms", Requests::Small, &|rounds| median(rounds, |round| round.p99_ms));
    row("CPU per GiB streamed, ms", Requests::Large, &|rounds| cpu_us_per(rounds, gib) / 1e3);
}

/// Processor time of all rounds over what all of them did.
fn cpu_us_per(rounds: &[&Round], done: impl Fn(&Round) -> f64) -> f64 {
    let cpu_us: f64 = rounds.iter().map(|round| round.cpu_us).sum();
    cpu_us / rounds.iter().map(|round| done(round)).sum::<f64>()
}

/// The median; for an even number of rounds, the mean of the middle two. NaN without rounds.
fn median(rounds: &[&Round], value: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|round| value(round)).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(requests: usize, cpu_us: f64, p99_ms: f64) -> Round {
        Round { proxy: "edge", what: Requests::Small, requests, bytes: 0, cpu_us, p50_ms: 0.0, p99_ms }
    }

    #[test]
    fn a_round_counts_for_what_it_did() {
        let (busy, idle) = (round(9_000, 180_000.0, 2.0), round(1_000, 40_000.0, 4.0));
        // The mean of both rounds would be 30, and the one in the middle 40.
        assert!((cpu_us_per(&[&busy, &idle], |round| round.requests as f64) - 22.0).abs() < 1e-9);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        let rounds = [round(1, 1.0, 4.0), round(1, 1.0, 2.0), round(1, 1.0, 9.0)];
        let median_of = |count: usize| {
            let rounds: Vec<_> = rounds.iter().take(count).collect();
            median(&rounds, |round| round.p99_ms)
        };
        assert!((median_of(3) - 4.0).abs() < 1e-9 && (median_of(2) - 3.0).abs() < 1e-9);
        assert!((median_of(1) - 4.0).abs() < 1e-9 && median_of(0).is_nan());
    }
}
