//! `cargo xtask fuzz`: libFuzzer on the targets of `pandastack-fuzz`.
//!
//! The crates of this workspace are compiled a second time for it, so that the fuzzer sees which
//! branches an input takes. Dependencies come from the usual build: only our own parsers guide it.
//!
//! New inputs are kept below the target directory and not in the clone; `--keep` adds inputs that
//! reach new code, and every input that failed, to the corpus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::program::{self, cargo, program};
use crate::tree;

/// The crate with the targets, from the clone's root.
const CRATE: &str = "crates/pandastack-fuzz";
/// The program: an example of that crate.
const FUZZER: &str = "libfuzzer";
/// Variable that names the target for the program.
const TARGET: &str = "PANDASTACK_FUZZ_TARGET";
/// Fuzzing of one target by `cargo xtask test --full`.
pub const SUITE_SECONDS: u64 = 15;
/// Longest time for one input. Beyond it: a hang, which is a failure.
const INPUT_SECONDS_MAX: u32 = 10;
/// Memory of the fuzzer with everything. Beyond it: a failure. Each target has a limit of its own, far below.
const MEMORY_MIB_MAX: u32 = 2048;
/// Longest input that is kept in the clone.
const KEPT_BYTES_MAX: u32 = 2048;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Target to fuzz, such as `http1-answer`; all of them when unset
    target: Option<String>,
    /// Minutes for each target
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Add inputs that reach something new to the corpus in the clone
    #[arg(long)]
    keep: bool,
}

/// Carries it out.
pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(reason) = missing() {
        bail!("{reason}");
    }
    let known = targets()?;
    let chosen = match args.target {
        Some(target) if known.contains(&target) => vec![target],
        Some(target) => bail!("unknown target `{target}`; use one of {}", known.join(", ")),
        None => known,
    };
    tree::use_profile(tree::Profile::Develop);
    let fuzzer = build()?;
    let seconds = (args.minutes * 60.0).ceil() as u64;
    let mut failed = Vec::new();
    for target in chosen {
        if !fuzz(&fuzzer, &target, seconds)? {
            failed.push(target.clone());
        }
        if args.keep {
            keep(&fuzzer, &target)?;
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed: {}; the inputs are in {}", failed.join(", "), findings().display());
    Ok(ExitCode::FAILURE)
}

/// Reason why fuzzing is not possible here, if any.
pub fn missing() -> Option<String> {
    let found = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    (!found).then(|| "fuzzing: libFuzzer needs a C++ compiler; install g++ or clang".to_owned())
}

/// Names of the targets: each has a corpus.
pub fn targets() -> Result<Vec<String>> {
    let corpora = tree::root().join(CRATE).join("corpus");
    let listed = fs::read_dir(&corpora).with_context(|| format!("list {}", corpora.display()))?;
    let names = listed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>().context("list the corpora")?;
    names.sort();
    Ok(names)
}

/// Builds the program. Cargo is given all crates, so that dependencies have the features that tests have.
pub fn build() -> Result<PathBuf> {
    let mut build = cargo(&["build", "--profile", tree::profile().name(), "--workspace"]);
    build.args(["--example", FUZZER, "--features", "pandastack-fuzz/libfuzzer"]);
    build.env("RUSTC_WORKSPACE_WRAPPER", tree::root().join(CRATE).join("instrument.sh"));
    program::run(build)?;
    Ok(tree::target_dir().join(tree::profile().name()).join("examples").join(FUZZER))
}

/// Fuzzes a target; whether nothing was found.
pub fn fuzz(fuzzer: &Path, target: &str, seconds: u64) -> Result<bool> {
    eprintln!("\n-- {target}, {seconds} s");
    let (grown, findings) = (grown(target), findings());
    for dir in [&grown, &findings] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let mut fuzzing = of_target(fuzzer, target);
    fuzzing.arg(format!("-max_total_time={seconds}"));
    fuzzing.arg(format!("-timeout={INPUT_SECONDS_MAX}")).arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    fuzzing.arg(format!("-artifact_prefix={}/{target}-", findings.display()));
    fuzzing.args(["-print_final_stats=1", "-verbosity=1", "-print_pcs=0", "-use_value_profile=1"]);
    // The first directory gets new inputs.
    fuzzing.arg(&grown).arg(corpus(target));
    let status = fuzzing.status().with_context(|| format!("fuzz {target}"))?;
    Ok(status.success())
}

/// Adds those of the new inputs to the clone that reach something new.
fn keep(fuzzer: &Path, target: &str) -> Result<()> {
    let mut merge = of_target(fuzzer, target);
    merge.args(["-merge=1", &format!("-max_len={KEPT_BYTES_MAX}"), "-verbosity=0"]);
    merge.arg(corpus(target)).arg(grown(target));
    program::run(merge)
}

fn of_target(fuzzer: &Path, target: &str) -> Command {
    let mut command = program(fuzzer);
    command.env(TARGET, target);
    command
}

fn corpus(target: &str) -> PathBuf {
    tree::root().join(CRATE).join("corpus").join(target)
}

fn grown(target: &str) -> PathBuf {
    tree::target_dir().join("fuzz/corpus").join(target)
}

fn findings() -> PathBuf {
    tree::target_dir().join("fuzz/found")
}
