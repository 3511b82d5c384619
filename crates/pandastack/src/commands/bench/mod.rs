//! `pandastack bench`: measures the latency of create, exec, fork and delete as seen by this client.
//!
//! A round creates a sandbox, runs a command in it twice, forks it and deletes both. The first
//! round is not counted, because it may wait for the template to be built and opens the
//! connections.
//!
//! Invariant: no sandbox is left behind, not even after Ctrl-C or a failure. Calls in flight are
//! therefore awaited, so that their sandboxes can be deleted, and sandboxes have a short TTL in
//! case this program is killed.
//!
//! `cargo xtask bench` measures where the server spends its time.

mod round;
mod samples;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use futures::future::join_all;
use pandastack_client::Client;
use pandastack_types::api::Sandbox;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::round::{Round, Subject};
use self::samples::{Samples, Summary};
use super::runtime::with_client;
use crate::failure::INTERRUPTED;
use crate::output::Output;
use crate::progress::Progress;

/// Maximum number of rounds: samples are kept in memory.
const COUNT_MAX: u32 = 10_000;
/// Maximum number of concurrent rounds; each uses two sandboxes.
const CONCURRENCY_MAX: u32 = 64;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template to measure
    #[arg(long, short, default_value = "base")]
    template: String,
    /// Number of rounds to measure, 1 to 10000
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX as i64))]
    count: u32,
    /// Number of concurrent rounds, 1 to 64; each uses two sandboxes
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX as i64))]
    concurrency: u32,
    /// Command to run in each sandbox; a single word is run by the shell
    #[arg(last = true, value_name = "CMD", default_value = "true")]
    command: Vec<String>,
}

/// The results, with the measured server and template.
#[derive(Debug, Serialize)]
struct Report {
    server: String,
    template: String,
    engine: String,
    isolation: String,
    concurrency: u32,
    /// Completed rounds.
    rounds: u32,
    /// Whether Ctrl-C stopped the run early.
    interrupted: bool,
    figures: Vec<Summary>,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let stop = CancellationToken::new();
        let watch = tokio::spawn(stop_at_signal(stop.clone())?);
        let report = measure(&client, &args, &stop).await;
        watch.abort();
        let report = report?;
        output.value(&report, describe)?;
        Ok(if report.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    })
}

/// Stops the run on the first SIGINT or SIGTERM; exits immediately on the second.
fn stop_at_signal(stop: CancellationToken) -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if stop.is_cancelled() {
                eprintln!(
                    "warning: some sandboxes may not have been deleted; they will expire with their TTL"
                );
                std::process::exit(INTERRUPTED.into());
            }
            eprintln!("stopping; deleting the sandboxes of this run");
            stop.cancel();
        }
    })
}

async fn measure(client: &Client, args: &Args, stop: &CancellationToken) -> Result<Report> {
    let subject = Subject::new(&args.template, args.command.clone());
    let Some(first) = Round::new(client, &subject, stop).warm_up().await? else {
        return Ok(Report::new(client, args, None, 0, Vec::new()));
    };
    let progress = Progress::start(format!("Measuring {} rounds", args.count));
    let (started, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let workers = (0..args.concurrency.min(args.count)).map(|_| async {
        let mut samples = Samples::default();
        while !stop.is_cancelled() && started.fetch_add(1, Ordering::Relaxed) < args.count {
            let round = Round::new(client, &subject, stop).run(&mut samples).await;
            // A failed round stops the others, each after its own cleanup.
            let completed = round.inspect_err(|_| stop.cancel())?;
            let so_far = done.fetch_add(u32::from(completed), Ordering::Relaxed) + u32::from(completed);
            progress.show(format!("Measured {so_far} of {} rounds", args.count));
        }
        anyhow::Ok(samples)
    });
    // Joined, so that every worker can delete its sandboxes.
    let all: Vec<Samples> = join_all(workers).await.into_iter().collect::<Result<_>>()?;
    Ok(Report::new(client, args, Some(first), done.load(Ordering::Relaxed), all))
}

impl Report {
    fn new(client: &Client, args: &Args, first: Option<Sandbox>, rounds: u32, all: Vec<Samples>) -> Self {
        let (engine, isolation) =
            first.map(|sandbox| (sandbox.engine, sandbox.isolation)).unwrap_or_default();
        Self {
            server: client.api_url().to_owned(),
            template: args.template.clone(),
            engine,
            isolation,
            concurrency: args.concurrency,
            rounds,
            interrupted: rounds < args.count,
            figures: Samples::merged(all).summaries(),
        }
    }
}

fn describe(report: &Report) -> String {
    let Report { template, engine, isolation, concurrency, rounds, server, .. } = report;
    let concurrent = if *concurrency == 1 { String::new() } else { format!(", {concurrency} concurrent") };
    let head =
        format!("{template} on {server} ({engine}, {isolation} isolation), {rounds} rounds{concurrent}");
    format!("{head}\n\n{}", samples::table(&report.figures))
}
