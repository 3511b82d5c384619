//! `cargo xtask test`: everything, real machines included.
//!
//! Suites that wait a lot run beside others, all else one after the other ([`STEPS`]); a failing
//! one does not stop the rest, and each ends in counts. Tests that could not run on this host are
//! named with the reason, failed ones by name: the whole output is in the cache's `logs`. The
//! slowest suites and tests are listed, and how busy the processors were: a suite that leaves them
//! idle could run beside another. The last line is exactly `N passed, N failed, N skipped`. The
//! summary is kept beside the logs.
//!
//! `--full` adds what takes many minutes. Its end-to-end tests are listed with their reasons in
//! `tests/e2e/python/full_only.py`; of the Rust tests it adds `every_slot_of_a_host_is_created`.

mod busy;
mod counts;
mod drift;
mod kvm_lab;
mod lanes;
mod lint;
mod output;
mod seed;
mod shared;
mod silence;
mod suites;
mod timings;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use busy::Processors;
use counts::Counts;
use suites::Session;

use crate::tree::{self, Profile};

/// A suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// Formatting and house rules
    Tidy,
    /// Lints, as errors
    Clippy,
    /// Tests of every crate
    Rust,
    /// Tests of the engine with a newer QEMU than the host's
    Qemu,
    /// Unit tests of the Python SDK
    Python,
    /// Unit tests of the TypeScript SDK
    Typescript,
    /// Both SDKs against a platform with real machines
    E2e,
    /// Coverage-guided fuzzing of every parser of hostile bytes; runs with `--full` or by name
    Fuzz,
    /// Templates and engine with today's newest packages and kernel; runs with `--full` or by name
    Drift,
    /// Firecracker on emulated KVM, after everything else; runs with `--full`, then also QEMU, or by name
    Kvm,
    /// E2B's own suites against this platform; runs by name, with checkouts of their repositories in
    /// `PANDASTACK_E2B_REPO` and `PANDASTACK_E2B_INTERPRETER_REPO`
    #[value(name = "e2b-suite")]
    E2bClients,
}

/// A part of a suite, with a line of its own in the summary.
struct Part {
    suite: Suite,
    name: &'static str,
    run: fn(&Session) -> Result<Counts>,
}

const fn part(suite: Suite, name: &'static str, run: fn(&Session) -> Result<Counts>) -> Part {
    Part { suite, name, run }
}

/// Steps that run one after the other: each is some lanes beside each other, each lane some parts.
///
/// Two lanes keep two processors busy to the end: tests wait a lot, and an emulated machine computes on one
/// processor.
const STEPS: [&[&[Part]]; 8] = [
    &[&[part(Suite::Tidy, "tidy", Session::tidy)]],
    &[&[part(Suite::Clippy, "clippy", Session::clippy)]],
    &[
        &[
            part(Suite::Rust, "rust", Session::rust),
            part(Suite::E2e, "e2e, one platform", Session::sharing),
            part(Suite::E2e, "e2e, the others", Session::alone),
        ],
        &[
            part(Suite::Python, "sdk/python", Session::python),
            part(Suite::Typescript, "sdk/typescript", Session::typescript),
            part(Suite::Qemu, "QEMU 10", Session::newer_qemu),
            part(Suite::E2e, "platform starts", Session::start_platform),
            part(Suite::E2e, "e2e, an internet", Session::with_internet),
            part(Suite::E2e, "e2e, the others", Session::alone),
        ],
    ],
    &[&[part(Suite::E2e, "nothing is left", Session::stop_platform)]],
    &[&[part(Suite::Fuzz, "fuzz", Session::fuzz)]],
    &[&[
        part(Suite::Drift, "newest packages", Session::newest_packages),
        part(Suite::Drift, "newest kernel", Session::newest_kernel),
    ]],
    &[&[part(Suite::Kvm, "Firecracker on KVM", Session::firecracker_on_kvm)]],
    &[&[part(Suite::E2bClients, "E2B's own suites", Session::e2b_suite)]],
];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these suites
    #[arg(long, value_delimiter = ',', value_name = "SUITE")]
    only: Vec<Suite>,
    /// Also what takes many minutes: every slot of a host, every step at which something can be
    /// killed, an app of every framework
    #[arg(long)]
    full: bool,
}

impl Suite {
    /// Returns whether the suite needs what cargo compiles, which suites beside each other share.
    fn is_compiled(self) -> bool {
        matches!(self, Self::Rust | Self::Qemu | Self::E2e)
    }
}

impl Args {
    /// A full run tests the program that people run. The lab's machine is emulated twice, and slow enough.
    fn profile(&self) -> Profile {
        let optimized = self.full || self.only == [Suite::Kvm];
        if optimized { Profile::Release } else { Profile::Develop }
    }

    fn has(&self, suite: Suite) -> bool {
        match suite {
            _ if !self.only.is_empty() => self.only.contains(&suite),
            // The build of the tests lints, too; a full run compiles with another profile.
            Suite::Clippy => self.full,
            // The corpora are replayed by the Rust tests; what this adds takes many minutes.
            Suite::Fuzz => self.full,
            // Its failures come from new releases of dependencies, not from the change under test,
            // and it downloads all of them.
            Suite::Drift => self.full,
            // It needs the machine to itself for minutes, because KVM is emulated in software; the usual run
            // has the same platform on QEMU.
            Suite::Kvm => self.full,
            // Others' tests, which are not in this repository.
            Suite::E2bClients => false,
            _ => true,
        }
    }
}

/// File with the summary of the last run, beside the logs.
const SUMMARY: &str = "summary.log";

/// One line of the summary.
struct Line {
    name: &'static str,
    counts: Counts,
    took: Duration,
    /// Share of the processors' time that was used, in percent.
    busy_percent: u64,
}

impl Line {
    /// A failed line for a lane that panicked, whose suites are unknown.
    fn panicked() -> Self {
        Self { name: "a lane", counts: Counts::one(false), took: Duration::ZERO, busy_percent: 0 }
    }
}

/// Carries it out.
pub fn run(args: Args) -> Result<ExitCode> {
    tree::use_profile(args.profile());
    let session = Session::new(args.full)?;
    let (began, mut lines) = (Instant::now(), Vec::new());
    let mut built = false;
    for step in STEPS {
        let lanes: Vec<Vec<&Part>> = step.iter().map(|lane| chosen(&args, lane)).collect();
        if !built && lanes.iter().flatten().any(|part| part.suite.is_compiled()) {
            lines.push(line("build", Session::build, &session));
            built = true;
        }
        lines.extend(run_lanes(&session, &lanes));
    }
    Ok(summary(&lines, began.elapsed()))
}

fn chosen<'a>(args: &Args, lane: &'a [Part]) -> Vec<&'a Part> {
    lane.iter().filter(|part| args.has(part.suite)).collect()
}

/// Runs lanes beside each other, and the parts of each one after the other.
fn run_lanes(session: &Session, lanes: &[Vec<&Part>]) -> Vec<Line> {
    let run = |lane: &[&Part]| -> Vec<Line> {
        lane.iter().map(|part| line(part.name, part.run, session)).collect()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || run(lane))).collect();
        running.into_iter().flat_map(|lane| lane.join().unwrap_or_else(|_| vec![Line::panicked()])).collect()
    })
}

fn line(name: &'static str, part: fn(&Session) -> Result<Counts>, session: &Session) -> Line {
    eprintln!("\n== {name}");
    let (began, processors) = (Instant::now(), Processors::now());
    let counts = part(session).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Counts::one(false)
    });
    let busy_percent = processors.busy_percent(&Processors::now());
    Line { name, counts, took: began.elapsed(), busy_percent }
}

fn summary(lines: &[Line], took: Duration) -> ExitCode {
    let mut total = Counts::default();
    lines.iter().for_each(|line| total.add(&line.counts));
    let text = summary_text(lines, took, &total);
    print!("\n{text}");
    let logs = output::logs_dir();
    let kept = std::fs::create_dir_all(&logs).and_then(|()| std::fs::write(logs.join(SUMMARY), &text));
    // The tests passed or failed all the same.
    kept.unwrap_or_else(|error| eprintln!("warning: cannot write {SUMMARY} in {}: {error}", logs.display()));
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary_text(lines: &[Line], took: Duration, total: &Counts) -> String {
    let mut text = String::new();
    for Line { name, counts, took: own, busy_percent } in lines {
        let seconds = own.as_secs_f64();
        text += &format!("{name:<18} {counts} ({seconds:.1} s, processors {busy_percent} % busy)\n");
    }
    text += &format!("{:<18} {:.1} min\n", "all of it", took.as_secs_f64() / 60.0);
    text += &total.timings.tables();
    let mut list = |title: &str, items: &[String]| {
        if !items.is_empty() {
            text += &format!("\n{title}:\n");
            items.iter().for_each(|item| text += &format!("  {item}\n"));
        }
    };
    list("changed since it was locked", &total.notes);
    list("skipped", &total.reasons);
    list(&format!("failed (all that was printed is in {})", output::logs_dir().display()), &total.failures);
    text + &format!("\n{total}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_a_part() {
        let parts: Vec<&Part> =
            STEPS.iter().flat_map(|lanes| lanes.iter()).flat_map(|lane| lane.iter()).collect();
        let suites = <Suite as clap::ValueEnum>::value_variants();
        assert!(suites.iter().all(|suite| parts.iter().any(|part| part.suite == *suite)));
    }

    #[test]
    fn drift_and_fuzzing_run_in_full_or_by_name() {
        for suite in [Suite::Drift, Suite::Fuzz] {
            let has = |only: &[Suite], full| Args { only: only.to_vec(), full }.has(suite);
            assert!(!has(&[], false) && !has(&[Suite::Rust], true));
            assert!(has(&[], true) && has(&[suite], false));
        }
        let has = |only: &[Suite], full| Args { only: only.to_vec(), full }.has(Suite::E2bClients);
        assert!(!has(&[], true) && has(&[Suite::E2bClients], false));
    }
}
