//! Counts, read from what test programs print.

use std::fmt;

use super::timings::Timings;

/// Results of some tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed tests.
    pub passed: u64,
    /// Failed tests.
    pub failed: u64,
    /// Tests that cannot run here.
    pub skipped: u64,
    /// Reasons for skipped tests, one line each.
    pub reasons: Vec<String>,
    /// Named failures, one line each.
    pub failures: Vec<String>,
    /// Changes outside, one line each.
    pub notes: Vec<String>,
    /// Durations.
    pub timings: Timings,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Counts {
    /// A suite that is one test.
    pub fn one(passed: bool) -> Self {
        Self { passed: u64::from(passed), failed: u64::from(!passed), ..Self::default() }
    }

    /// A suite that cannot run here.
    pub fn skipped(reason: String) -> Self {
        Self { skipped: 1, reasons: vec![reason], ..Self::default() }
    }

    /// Adds another suite's.
    pub fn add(&mut self, other: &Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.reasons.extend(other.reasons.iter().cloned());
        self.failures.extend(other.failures.iter().cloned());
        self.notes.extend(other.notes.iter().cloned());
        self.timings.add(&other.timings);
    }

    /// With how long they took.
    pub fn with_timings(self, timings: Timings) -> Self {
        Self { timings, ..self }
    }

    /// A program that failed without a failed test (it did not compile, it crashed) has failed once.
    pub fn with_status(mut self, success: bool) -> Self {
        if !success && self.failed == 0 {
            self.failed = 1;
        }
        self
    }
}

/// Reads `cargo test -- --show-output`. A test that succeeds and prints a line beginning with
/// "skip" ran nothing: the test harness counts it as passed, we do not. A failing test is a
/// failure, regardless of its output.
pub fn of_cargo(output: &str) -> Counts {
    let mut counts = Counts::default();
    let mut section: Option<&str> = None;
    let (mut in_successes, mut skipped_in_section) = (false, false);
    let mut self_skipped = 0;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            (section, skipped_in_section) = (Some(name), false);
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            (section, in_successes) = (None, false);
            counts.passed += number_before(rest, " passed");
            counts.failed += number_before(rest, " failed");
            let ignored = number_before(rest, " ignored");
            counts.skipped += ignored;
            if ignored > 0 {
                counts.reasons.push(format!("{ignored} ignored by their authors"));
            }
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            counts.failures.push(name.to_owned());
        } else if line == "successes:" || line == "failures:" {
            (section, in_successes) = (None, line == "successes:");
        } else if let (Some(name), Some((case, outcome))) = (section, case_of(line)) {
            match outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Failed => {
                    counts.failed += 1;
                    counts.failures.push(format!("{name}: {case}"));
                }
                Outcome::Skipped(reason) => {
                    counts.skipped += 1;
                    counts.reasons.push(format!("{name}: {case}: {reason}"));
                }
            }
        } else if let (Some(name), true) = (section, in_successes && is_skip(line)) {
            if !skipped_in_section {
                self_skipped += 1;
                skipped_in_section = true;
            }
            counts.reasons.push(format!("{name}: {}", line.trim()));
        }
    }
    counts.skipped += self_skipped;
    counts.passed = counts.passed.saturating_sub(self_skipped);
    counts
}

/// Result of a case.
enum Outcome<'a> {
    Passed,
    Failed,
    Skipped(&'a str),
}

/// Name and outcome in `case NAME ... ok (12.3 ms)`, `case NAME ... FAILED: WHY` or `case NAME ...
/// skipped: REASON`.
fn case_of(line: &str) -> Option<(&str, Outcome<'_>)> {
    let (name, outcome) = line.strip_prefix("case ")?.split_once(" ... ")?;
    if let Some(reason) = outcome.strip_prefix("skipped: ") {
        return Some((name, Outcome::Skipped(reason)));
    }
    let words = [("ok", Outcome::Passed), ("FAILED", Outcome::Failed)];
    words.into_iter().find(|(word, _)| outcome.starts_with(word)).map(|(_, outcome)| (name, outcome))
}

fn is_skip(line: &str) -> bool {
    line.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("skip"))
}

/// Reads `pytest -rsfE`.
pub fn of_pytest(output: &str) -> Counts {
    let mut counts = Counts::default();
    let is_summary = |line: &&str| {
        line.contains(" in ") && [" passed", " failed", " error", " skipped"].iter().any(|w| line.contains(w))
    };
    if let Some(line) = output.lines().rev().find(is_summary) {
        counts.passed = number_before(line, " passed");
        counts.failed = number_before(line, " failed") + number_before(line, " error");
        counts.skipped = number_before(line, " skipped");
    }
    let reasons = output.lines().filter_map(|line| line.strip_prefix("SKIPPED "));
    counts.reasons = reasons.map(str::to_owned).collect();
    let is_failure = |line: &&str| line.starts_with("FAILED ") || line.starts_with("ERROR ");
    counts.failures = output.lines().filter(is_failure).map(str::to_owned).collect();
    counts
}

/// Reads `node --test`, in either of its report formats.
pub fn of_node(output: &str) -> Counts {
    let value = |name: &str| {
        let of_line = |line: &str| {
            let line = line.trim_start_matches(['#', 'ℹ', ' ']);
            line.strip_prefix(name)?.trim().parse::<u64>().ok()
        };
        output.lines().filter_map(of_line).sum()
    };
    let skips = output.lines().filter(|line| line.contains("# SKIP"));
    let reasons = skips.map(|line| line.trim().trim_start_matches("ok ").to_owned()).collect();
    let failure = |line: &str| {
        let line = line.trim();
        line.strip_prefix("not ok ").or_else(|| line.strip_prefix("✖ ")).map(str::to_owned)
    };
    let failures = output.lines().filter_map(failure).collect();
    let failed = value("fail ") + value("cancelled ");
    let skipped = value("skipped ") + value("todo ");
    Counts { passed: value("pass "), failed, skipped, reasons, failures, ..Counts::default() }
}

/// The number before a word; 0 if the word does not occur.
fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().filter(|before| before.len() < line.len());
    let digits = before.and_then(|before| before.rsplit(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(counts: Counts, passed: u64, failed: u64, skipped: u64) {
        assert_eq!((counts.passed, counts.failed, counts.skipped), (passed, failed, skipped), "{counts:?}");
    }

    const CARGO: &str = "\
running 3 tests
test a ... ok
test b ... ok
test c ... FAILED

successes:

---- b stdout ----
skipped: b (no KVM here)

successes:
    a
    b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn cargo_test_output_is_parsed() {
        let counts = of_cargo(CARGO);
        assert_eq!(counts.reasons, ["b: skipped: b (no KVM here)", "1 ignored by their authors"]);
        assert_eq!(counts.failures, ["c"]);
        check(counts, 11, 1, 2);
    }

    #[test]
    fn a_failed_test_that_prints_skipped_is_a_failure() {
        let output = "\
running 2 tests
test a ... ok
test b ... FAILED

successes:

---- a stdout ----
skipped: a (no KVM here)

successes:
    a

failures:

---- b stdout ----
skipped: b (no KVM here)
thread 'b' panicked at src/lib.rs:1:1:

failures:
    b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let counts = of_cargo(output);
        assert_eq!(counts.reasons, ["a: skipped: a (no KVM here)"]);
        check(counts, 0, 1, 1);
    }

    #[test]
    fn cases_within_a_test_are_counted() {
        let output = "\
running 1 test
test engine_conforms ... FAILED

failures:

---- engine_conforms stdout ----
case boot answers ... ok (12.3 ms)
case restore continues ... FAILED: the guest did not answer
case forks are independent ... skipped: no memory to copy
the end of a case ... ok

failures:
    engine_conforms

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";
        let counts = of_cargo(output);
        assert_eq!(counts.reasons, ["engine_conforms: forks are independent: no memory to copy"]);
        assert_eq!(counts.failures, ["engine_conforms", "engine_conforms: restore continues"]);
        check(counts, 1, 2, 1);
    }

    #[test]
    fn pytest_output_is_parsed() {
        check(of_pytest("....\n4 passed in 0.10s\n"), 4, 0, 0);
        let text = "SKIPPED [1] test_a.py:3: no network\nFAILED test_a.py::b - assert 1 == 2\n=== 1 failed, 4 passed, 1 skipped, 1 error in 2.0s ===\n";
        assert_eq!(of_pytest(text).reasons, ["[1] test_a.py:3: no network"]);
        assert_eq!(of_pytest(text).failures, ["FAILED test_a.py::b - assert 1 == 2"]);
        check(of_pytest(text), 4, 2, 1);
        check(of_pytest("no tests ran\n"), 0, 0, 0);
    }

    #[test]
    fn node_test_output_is_parsed() {
        check(of_node("# tests 5\n# pass 3\n# fail 1\n# cancelled 0\n# skipped 1\n# todo 0\n"), 3, 1, 1);
        assert_eq!(of_node("ok 1 - a\n    not ok 2 - b\n# pass 1\n# fail 1\n").failures, ["2 - b"]);
        check(of_node("ℹ tests 5\nℹ pass 5\nℹ fail 0\n"), 5, 0, 0);
    }

    #[test]
    fn a_crashed_test_run_counts_as_a_failure() {
        check(Counts::default().with_status(false), 0, 1, 0);
        check(Counts::one(false).with_status(false), 0, 1, 0);
    }
}
