//! `pandastack bench`: how fast the caller's server makes, uses and copies machines of the caller's template.
//!
//! Owns the measuring from the client's side: what a person with this client at this place of the network waits for. A
//! round makes a sandbox, runs a command in it twice, forks it, and deletes both; the first round is not counted, because
//! it may have to wait for the template's bake and opens the connections.
//!
//! Must hold: nothing that it made stays, also after Ctrl-C or a failure. So calls under way are waited for, since what
//! they make has to be deleted, and sandboxes carry a short TTL in case this program is killed.
//!
//! Left to others: what the server itself spends where (`cargo xtask bench`).

mod figures;
mod round;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use futures::future::join_all;
use pandastack_client::Client;
use pandastack_types::api::Sandbox;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::figures::{Figures, Summary};
use self::round::{Round, Subject};
use crate::failure::INTERRUPTED;
use crate::output::Output;
use crate::progress::Progress;

/// Most rounds of one run: samples are kept in memory, and machines are made for each.
const COUNT_MAX: u32 = 10_000;
/// Most rounds at once; each has two machines.
const CONCURRENCY_MAX: u32 = 64;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template to measure
    #[arg(long, short, default_value = "base")]
    template: String,
    /// Rounds to measure
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX as i64))]
    count: u32,
    /// Rounds at once; each has two sandboxes
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONCURRENCY_MAX as i64))]
    concurrency: u32,
    /// The command to run; a single word is run by the shell
    #[arg(last = true, value_name = "CMD", default_value = "true")]
    command: Vec<String>,
}

/// What was measured, and on what.
#[derive(Debug, Serialize)]
struct Report {
    server: String,
    template: String,
    engine: String,
    isolation: String,
    concurrency: u32,
    /// Rounds that were carried out whole.
    rounds: u32,
    /// Whether Ctrl-C ended it before all rounds were done.
    interrupted: bool,
    figures: Vec<Summary>,
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    super::with_client(|client| async move {
        let stop = CancellationToken::new();
        let watch = tokio::spawn(stop_at_signal(stop.clone())?);
        let report = measure(&client, &args, &stop).await;
        watch.abort();
        let report = report?;
        output.value(&report, describe)?;
        Ok(if report.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    })
}

/// Listens for the person who has had enough. A second time ends the program at once.
fn stop_at_signal(stop: CancellationToken) -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if stop.is_cancelled() {
                eprintln!("warning: sandboxes of this run may be left; their TTL ends them");
                std::process::exit(INTERRUPTED.into());
            }
            eprintln!("stopping: the sandboxes of this run are deleted first");
            stop.cancel();
        }
    })
}

async fn measure(client: &Client, args: &Args, stop: &CancellationToken) -> Result<Report> {
    let subject = Subject::new(&args.template, args.command.clone());
    let Some(first) = Round::new(client, &subject, stop).run_uncounted().await? else {
        return Ok(Report::new(client, args, None, 0, Vec::new()));
    };
    let progress = Progress::start(format!("Measuring {} rounds", args.count));
    let (begun, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let workers = (0..args.concurrency.min(args.count)).map(|_| async {
        let mut figures = Figures::default();
        while !stop.is_cancelled() && begun.fetch_add(1, Ordering::Relaxed) < args.count {
            let round = Round::new(client, &subject, stop).run(&mut figures).await;
            // A round that fails ends the others too, each after its own clean-up.
            let whole = round.inspect_err(|_| stop.cancel())?;
            let so_far = done.fetch_add(u32::from(whole), Ordering::Relaxed) + u32::from(whole);
            progress.show(format!("Measured {so_far} of {} rounds", args.count));
        }
        anyhow::Ok(figures)
    });
    // Joined, not raced: every worker gets to delete what it made.
    let all: Vec<Figures> = join_all(workers).await.into_iter().collect::<Result<_>>()?;
    Ok(Report::new(client, args, Some(first), done.load(Ordering::Relaxed), all))
}

impl Report {
    fn new(client: &Client, args: &Args, first: Option<Sandbox>, rounds: u32, all: Vec<Figures>) -> Self {
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
            figures: Figures::merged(all).summaries(),
        }
    }
}

fn describe(report: &Report) -> String {
    let Report { template, engine, isolation, concurrency, rounds, server, .. } = report;
    let at_once = if *concurrency == 1 { String::new() } else { format!(", {concurrency} at once") };
    let head = format!("{template} on {server} ({engine}, {isolation} isolation), {rounds} rounds{at_once}");
    format!("{head}\n\n{}", figures::table(&report.figures))
}
