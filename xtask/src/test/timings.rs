//! Durations of a test run.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of the slowest that are shown.
const SHOWN: usize = 10;
/// Shortest duration that is shown.
const SHOWN_MIN: Duration = Duration::from_millis(100);

/// Durations of suites and single tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// Test programs and test files.
    pub suites: Vec<Timing>,
    /// Single tests.
    pub tests: Vec<Timing>,
}

/// Duration of a suite or test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    pub name: String,
    pub took: Duration,
}

/// A line of output, and when it was printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedLine {
    /// Since the start of the program.
    pub at: Duration,
    pub text: String,
}

impl Timings {
    /// One suite without single tests.
    pub fn suite(name: &str, took: Duration) -> Self {
        Self { suites: vec![Timing { name: name.to_owned(), took }], tests: Vec::new() }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Timings) {
        self.suites.extend(other.suites.iter().cloned());
        self.tests.extend(other.tests.iter().cloned());
    }

    /// The slowest of both, as two tables.
    pub fn tables(&self) -> String {
        let table = |what: &str, timings: &[Timing]| {
            let mut slowest: Vec<&Timing> =
                timings.iter().filter(|timing| timing.took >= SHOWN_MIN).collect();
            slowest.sort_by_key(|timing| (Reverse(timing.took), &timing.name));
            let lines = slowest.iter().take(SHOWN).map(|timing| timing.line()).collect::<String>();
            if lines.is_empty() { lines } else { format!("\nslowest {what}:\n{lines}") }
        };
        table("suites", &self.suites) + &table("tests", &self.tests)
    }
}

impl Timing {
    fn line(&self) -> String {
        format!("{:>10.1} s  {}\n", self.took.as_secs_f64(), self.name)
    }
}

/// Reads `cargo test` with standard error in the same stream, or the output of one test program
/// alone. `threads` tests run at a time.
///
/// The test harness tells no times of single tests, but it begins them in the order of their names:
/// the first ones at once, and another one at each end of a test. So ends and names give all
/// beginnings.
pub fn of_cargo(lines: &[TimedLine], only_suite: &str, threads: usize) -> Timings {
    let mut timings = Timings::default();
    let mut suite = only_suite.to_owned();
    let mut began = Duration::ZERO;
    let mut ends: Vec<(String, Duration)> = Vec::new();
    for TimedLine { at, text } in lines {
        if let Some(name) = suite_of(text) {
            suite = name;
        } else if text.starts_with("running ") && text.trim_end().ends_with(['t', 's']) {
            began = *at;
            ends.clear();
        } else if let Some(name) = ended_test(text) {
            ends.push((name.to_owned(), *at));
        } else if let Some((_, seconds)) = text.split_once("; finished in ") {
            timings.tests.extend(tests_of(&suite, began, &ends, threads));
            ends.clear();
            let seconds = seconds.trim_end_matches('s').parse().unwrap_or_default();
            let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            timings.suites.push(Timing { name: suite.clone(), took });
        }
    }
    timings
}

/// The program in `Running tests/it/main.rs (target/release/deps/it-0a1b2c3d)` or `Doc-tests
/// pandastack_types`.
fn suite_of(line: &str) -> Option<String> {
    if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
        return Some(format!("doc tests of {name}"));
    }
    let (source, program) = line.trim_start().strip_prefix("Running ")?.split_once(" (")?;
    let program = program.trim_end_matches(')').rsplit('/').next()?;
    let name = program.rsplit_once('-').map_or(program, |(name, _)| name);
    Some(format!("{name} ({})", source.trim_start_matches("unittests ")))
}

/// The name in `test NAME ... ok`.
fn ended_test(line: &str) -> Option<&str> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let ended = ["ok", "FAILED", "ignored"].iter().any(|word| outcome.starts_with(word));
    ended.then_some(name.trim_end_matches(" - should panic"))
}

fn tests_of(suite: &str, began: Duration, ends: &[(String, Duration)], threads: usize) -> Vec<Timing> {
    let mut names: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let begins = std::iter::repeat_n(began, threads.max(1)).chain(ends.iter().map(|(_, at)| *at));
    let begins: BTreeMap<&str, Duration> = names.into_iter().zip(begins).collect();
    let timing = |(name, at): &(String, Duration)| {
        let took = at.saturating_sub(begins.get(name.as_str()).copied().unwrap_or(*at));
        Timing { name: format!("{suite}: {name}"), took }
    };
    ends.iter().map(timing).collect()
}

/// Reads the lines that `pytest --durations` prints, such as `12.34s call test_a.py::test_b`. The
/// parts of a test are one.
pub fn of_pytest(output: &str) -> Vec<Timing> {
    let mut tests: Vec<Timing> = Vec::new();
    for line in output.lines() {
        let Some((seconds, rest)) = line.split_once("s ") else { continue };
        let Some((part, name)) = rest.trim().split_once(' ') else { continue };
        let (Ok(seconds), name) = (seconds.trim().parse(), name.trim()) else { continue };
        let Ok(took) = Duration::try_from_secs_f64(seconds) else { continue };
        if !["setup", "call", "teardown"].contains(&part) || !name.contains("::") {
            continue;
        }
        match tests.iter_mut().find(|test| test.name == name) {
            Some(test) => test.took += took,
            None => tests.push(Timing { name: name.to_owned(), took }),
        }
    }
    tests
}

/// Reads `node --test`, in either of its report formats: `duration_ms` below a test, or `(12.3ms)`
/// behind its name.
pub fn of_node(output: &str) -> Vec<Timing> {
    let mut tests: Vec<Timing> = Vec::new();
    let mut name = None;
    for line in output.lines().map(str::trim) {
        let milliseconds = |text: &str| {
            let seconds = text.trim().trim_end_matches("ms").parse::<f64>().ok()? / 1_000.0;
            Duration::try_from_secs_f64(seconds).ok()
        };
        if let Some((_, rest)) = line.split_once("ok ").filter(|(not, _)| ["", "not "].contains(not)) {
            name = rest.split_once(" - ").map(|(_, name)| name.to_owned());
        } else if let (Some(text), true) = (line.strip_prefix("duration_ms:"), name.is_some()) {
            let timing = name.take().zip(milliseconds(text));
            tests.extend(timing.map(|(name, took)| Timing { name, took }));
        } else if line == "type: 'suite'" {
            // Its tests are listed above it.
            tests.pop();
        } else if let Some(rest) = ["✔ ", "✖ "].iter().find_map(|mark| line.strip_prefix(mark)) {
            let timing = rest.trim_end_matches(')').rsplit_once(" (");
            tests.extend(
                timing.and_then(|(name, text)| {
                    Some(Timing { name: name.to_owned(), took: milliseconds(text)? })
                }),
            );
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(timings: &[Timing]) -> Vec<(&str, u128)> {
        timings.iter().map(|timing| (timing.name.as_str(), timing.took.as_millis())).collect()
    }

    #[test]
    fn cargo_test_durations_are_derived_from_end_times() {
        let printed = [
            (0, "     Running unittests src/lib.rs (target/release/deps/pandastack_net-0a1b)"),
            (10, "running 4 tests"),
            (1_010, "test b ... ok"),
            (1_510, "test c - should panic ... ok"),
            (2_010, "test a ... FAILED"),
            (2_510, "test d ... ok"),
            (2_520, "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; finished in 2.50s"),
            (2_600, "   Doc-tests pandastack_net"),
            (2_610, "running 0 tests"),
            (2_620, "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; finished in 0.00s"),
        ];
        let lines =
            printed.map(|(at, text)| TimedLine { at: Duration::from_millis(at), text: text.to_owned() });
        let timings = of_cargo(&lines, "rust", 2);
        let expect = [("pandastack_net (src/lib.rs)", 2_500), ("doc tests of pandastack_net", 0)];
        assert_eq!(times(&timings.suites), expect);
        // `a` and `b` start at once, `c` when `b` ends, `d` when `c` ends.
        let tests = times(&timings.tests);
        let names = ["b", "c", "a", "d"].map(|name| format!("pandastack_net (src/lib.rs): {name}"));
        assert_eq!(
            tests,
            names.iter().map(String::as_str).zip([1_000, 500, 2_000, 1_000]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn pytest_durations_are_parsed() {
        let output = "12.50s call     test_a.py::test_b[x y]\n0.50s setup    test_a.py::test_b[x y]\n\
                      1.00s teardown test_c.py::test_d\n4 passed in 20.00s\n3s call\n";
        assert_eq!(
            times(&of_pytest(output)),
            [("test_a.py::test_b[x y]", 13_000), ("test_c.py::test_d", 1_000)]
        );
    }

    #[test]
    fn node_test_durations_are_parsed() {
        let tap = "# Subtest: a\nok 1 - a\n  ---\n  duration_ms: 12.5\n  type: 'test'\n  ...\n\
                   not ok 2 - b\n  ---\n  duration_ms: 7\n  type: 'suite'\n  ...\n# duration_ms 99\n";
        assert_eq!(times(&of_node(tap)), [("a", 12)]);
        let spec = "✔ a (b) (12.5ms)\n  ✖ c (3ms)\nℹ duration_ms 99\n";
        assert_eq!(times(&of_node(spec)), [("a (b)", 12), ("c", 3)]);
    }

    #[test]
    fn the_slowest_tests_are_shown() {
        let timing = |n: u64| Timing { name: format!("test {n}"), took: Duration::from_secs(n) };
        let timings = Timings { suites: Vec::new(), tests: (0..=12).map(timing).collect() };
        let table = timings.tables();
        assert!(table.starts_with("\nslowest tests:\n      12.0 s  test 12\n"), "{table}");
        assert_eq!(table.lines().count(), 12);
        assert!(Timings::default().tables().is_empty());
    }
}
