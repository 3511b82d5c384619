//! End-to-end tests, two at a time: an emulated machine keeps one processor busy, and much of a test
//! is waiting.
//!
//! ```text
//!  first   Rust tests ------------> | Python's on one platform | TypeScript's | the rest of those below
//!  second  SDKs, a newer QEMU, a platform | all with an internet | a file with its own platforms | ...
//! ```
//!
//! Files that took longest in the last run come first, so that both lanes end at about the same time.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Result, anyhow};

use super::counts::Counts;
use super::output::log_path;
use super::suites::{pytest, pytest_of};
use crate::program;

const TESTS: &str = "tests/e2e/python";
/// Tests that share the one platform.
const SHARING: &str = "not own_platform";
/// Tests that start, kill and count platforms of their own, at public addresses that only one of
/// them can have at a time.
const WITH_INTERNET: &str = "own_platform and internet";
/// Tests that start, kill and count platforms of their own, each in a directory of its own.
const ALONE: &str = "own_platform and not internet";

/// Durations for the first run on a machine, which knows none: the longest files, and all others.
const LONGEST: [(&str, u64); 5] = [
    ("test_time_travel.py", 180),
    ("test_crash_matrix.py", 150),
    ("test_copies.py", 95),
    ("test_database_servers.py", 75),
    ("test_apps_instances.py", 75),
];
const USUAL_SECONDS: u64 = 50;

/// Files with tests that start platforms of their own, for whichever lane is free.
#[derive(Debug)]
pub struct Files(Mutex<VecDeque<String>>);

impl Files {
    /// Lists them, the longest first.
    pub fn list(python: Command) -> Result<Self> {
        let mut files = files_of(&program::read(pytest_of(python, TESTS, &["--collect-only", "-m", ALONE]))?);
        files.make_contiguous().sort_by_key(|file| Reverse(last_seconds(file)));
        Ok(Self(Mutex::new(files)))
    }

    /// Runs files until none is left.
    pub fn run(&self, python: impl Fn() -> Result<Command>) -> Result<Counts> {
        let mut counts = Counts::default();
        loop {
            let next = self.0.lock().map_err(|_| anyhow!("the other lane panicked"))?.pop_front();
            let Some(file) = next else { return Ok(counts) };
            counts.add(&pytest(python()?, &file, &file, &["-m", ALONE])?);
        }
    }
}

/// Runs the tests that share the one platform.
pub fn sharing(python: Command) -> Result<Counts> {
    pytest(python, TESTS, TESTS, &["-m", SHARING])
}

/// Runs the tests with platforms of their own in the small internet.
pub fn with_internet(python: Command) -> Result<Counts> {
    pytest(python, "tests/e2e/python-internet", TESTS, &["-m", WITH_INTERNET])
}

/// The files of the tests that `pytest --collect-only -q` lists as `file::test`, each once, in their order.
fn files_of(listed: &str) -> VecDeque<String> {
    let mut files = VecDeque::new();
    for (file, _) in listed.lines().filter_map(|line| line.split_once("::")) {
        // Listed from the directory of pytest's settings.
        let file = format!("{TESTS}/{file}");
        if files.back() != Some(&file) {
            files.push_back(file);
        }
    }
    files
}

/// Duration of a file in the last run, or an estimate.
fn last_seconds(file: &str) -> u64 {
    let log = std::fs::read_to_string(log_path(file)).unwrap_or_default();
    log.lines().rev().find_map(seconds_of).unwrap_or_else(|| usual_seconds(file))
}

fn usual_seconds(file: &str) -> u64 {
    let name = file.rsplit('/').next().unwrap_or(file);
    LONGEST.iter().find(|(long, _)| *long == name).map_or(USUAL_SECONDS, |(_, seconds)| *seconds)
}

/// The whole seconds in `23 passed in 251.34s (0:04:11)`.
fn seconds_of(line: &str) -> Option<u64> {
    let (_, took) =
        line.split_once(" in ").filter(|(counts, _)| counts.starts_with(|c: char| c.is_ascii_digit()))?;
    took.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_parsed_from_the_pytest_listing() {
        let listed = "test_a.py::one\ntest_a.py::two[x::y]\ntest_b.py::one\n\n3/9 tests collected (6 deselected) in 0.1s\n";
        assert_eq!(files_of(listed), ["tests/e2e/python/test_a.py", "tests/e2e/python/test_b.py"]);
        assert!(files_of("no tests collected\n").is_empty());
    }

    #[test]
    fn the_duration_of_the_last_run_is_parsed() {
        assert_eq!(seconds_of("23 passed, 1 skipped in 251.34s (0:04:11)"), Some(251));
        assert_eq!(seconds_of("5 passed in 47.85s"), Some(47));
        assert_eq!(seconds_of("SKIPPED [1] waits in 1.5s"), None);
    }
}
