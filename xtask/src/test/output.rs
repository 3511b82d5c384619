//! Runs a suite's program: shows its output, and stores it in a log.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::silence::{self, Watch};
use super::timings::{TimedLine, Timing, Timings};
use crate::program::line_of;
use crate::tree::{self, Profile};

/// Directory of the last run's output.
pub fn logs_dir() -> PathBuf {
    tree::cache_dir().join("logs")
}

/// File with the last output of one suite.
pub fn log_path(suite: &str) -> PathBuf {
    logs_dir().join(format!("{}.log", suite.replace('/', "-")))
}

/// Output of a program, and how it ended.
pub struct Output {
    pub lines: Vec<TimedLine>,
    pub success: bool,
}

impl Output {
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect()
    }

    /// The times of one suite with these tests.
    pub fn timings(&self, suite: &str, tests: Vec<Timing>) -> Timings {
        let took = self.lines.last().map_or(Duration::ZERO, |line| line.at);
        Timings { tests, ..Timings::suite(suite, took) }
    }
}

/// Handling of standard error.
#[derive(PartialEq, Eq)]
pub enum Errors {
    /// Shown, and not in the output.
    Shown,
    /// In the output, in the order of lines.
    Kept,
}

pub fn silence_max() -> Duration {
    match tree::profile() {
        Profile::Develop => silence::RUST_MAX,
        _ => silence::RUST_FULL_MAX,
    }
}

/// Runs to the end, shows and stores the output.
pub fn tee(command: Command, suite: &str, errors: Errors) -> Result<Output> {
    tee_watched(command, suite, errors, None)
}

/// The same, and ends a program that is silent for too long.
pub fn tee_watched(
    mut command: Command,
    suite: &str,
    errors: Errors,
    silence_max: Option<Duration>,
) -> Result<Output> {
    let line = line_of(&command);
    let reading = || format!("read from `{line}`");
    let log_path = log_path(suite);
    fs::create_dir_all(logs_dir()).with_context(|| format!("make {}", logs_dir().display()))?;
    let mut log = File::create(&log_path).with_context(|| format!("make {}", log_path.display()))?;
    let (reader, writer) = std::io::pipe().with_context(reading)?;
    if errors == Errors::Kept {
        command.stderr(writer.try_clone().with_context(reading)?);
    }
    let began = Instant::now();
    let mut child = command.stdout(writer).spawn().with_context(|| format!("start `{line}`"))?;
    // The command holds the writing end of the pipe.
    drop(command);
    let watch = silence_max.map(|max| Watch::begin(child.id(), max));
    let mut lines = Vec::new();
    for read in BufReader::new(reader).split(b'\n') {
        let text = String::from_utf8_lossy(&read.with_context(reading)?).into_owned();
        println!("{text}");
        writeln!(log, "{text}").with_context(|| format!("write {}", log_path.display()))?;
        lines.push(TimedLine { at: began.elapsed(), text });
        watch.iter().for_each(Watch::line);
    }
    if watch.is_some_and(Watch::end) {
        eprintln!("error: `{line}` was ended, because it printed nothing for too long: see its last lines");
    }
    let status = child.wait().with_context(|| format!("wait for `{line}`"))?;
    Ok(Output { lines, success: status.success() })
}
