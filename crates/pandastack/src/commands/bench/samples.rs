//! Latency samples in milliseconds and their percentiles.

use serde::Serialize;

use crate::output::align;

/// A measured operation, in display order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// From the request to the response that the sandbox runs.
    Create,
    /// From the same request to the end of the first command.
    CreateAndExec,
    /// A command in a sandbox that has already run one.
    Exec,
    /// From the request to the response that the fork runs.
    Fork,
    /// Deletion of a sandbox.
    Delete,
}

const OPERATIONS: [(Operation, &str); 5] = [
    (Operation::Create, "create"),
    (Operation::CreateAndExec, "create_and_exec"),
    (Operation::Exec, "exec"),
    (Operation::Fork, "fork"),
    (Operation::Delete, "delete"),
];

/// Samples of every operation, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub struct Samples([Vec<f64>; OPERATIONS.len()]);

/// Statistics of one operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    name: &'static str,
    count: usize,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    samples_ms: Vec<f64>,
}

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, operation: Operation, took: std::time::Duration) {
        // Rounded to microseconds, which is finer than network jitter.
        self.0[operation as usize].push((took.as_secs_f64() * 1e6).round() / 1e3);
    }

    /// Merges the samples of several workers.
    pub fn merged(parts: Vec<Samples>) -> Self {
        let mut whole = Self::default();
        for part in parts {
            whole.0.iter_mut().zip(part.0).for_each(|(all, more)| all.extend(more));
        }
        whole
    }

    /// Statistics of the operations that have samples.
    pub fn summaries(&self) -> Vec<Summary> {
        let measured = OPERATIONS.iter().map(|(operation, name)| (*name, &self.0[*operation as usize]));
        measured.filter_map(|(name, samples)| Summary::of(name, samples)).collect()
    }
}

impl Summary {
    fn of(name: &'static str, samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| percentile(&sorted, percent);
        let (p50_ms, p90_ms, p99_ms) = (at(50)?, at(90)?, at(99)?);
        Some(Self { name, count: samples.len(), p50_ms, p90_ms, p99_ms, samples_ms: samples.to_vec() })
    }
}

/// Nearest-rank percentile.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Formats the statistics as a table.
pub fn table(summaries: &[Summary]) -> String {
    let header = ["OPERATION", "N", "P50", "P90", "P99"].map(str::to_owned);
    let shown = |ms: f64| format!("{ms:.1} ms");
    let rows = summaries.iter().map(|summary| {
        let Summary { name, count, p50_ms, p90_ms, p99_ms, .. } = summary;
        [name.replace('_', " "), count.to_string(), shown(*p50_ms), shown(*p90_ms), shown(*p99_ms)]
    });
    align(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_are_actual_samples() {
        let sorted: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(
            [50, 90, 99].map(|percent| percentile(&sorted, percent)),
            [Some(5.0), Some(9.0), Some(10.0)]
        );
    }

    #[test]
    fn samples_of_workers_are_merged() {
        let mut one = Samples::default();
        one.push(Operation::Create, Duration::from_micros(12_340));
        let mut other = Samples::default();
        other.push(Operation::Create, Duration::from_micros(8_000));
        other.push(Operation::Delete, Duration::from_millis(3));
        let summaries = Samples::merged(vec![one, other]).summaries();
        assert_eq!(summaries[0].samples_ms, [12.34, 8.0]);
        assert_eq!(
            table(&summaries),
            "OPERATION  N  P50     P90      P99\ncreate     2  8.0 ms  12.3 ms  12.3 ms\n\
             delete     1  3.0 ms  3.0 ms   3.0 ms"
        );
    }
}
