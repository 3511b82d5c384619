//! What was measured: samples in milliseconds, and their percentiles.

use serde::Serialize;

use crate::output::align;

/// What is measured, in the order in which it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// From the request for a sandbox to the answer that it runs.
    Create,
    /// From the same request to the end of the first command in it.
    CreateAndExec,
    /// A command in a sandbox that ran one before.
    Exec,
    /// From the request for a copy to the answer that it runs.
    Fork,
    /// Deleting a sandbox.
    Delete,
}

const FIGURES: [(Figure, &str); 5] = [
    (Figure::Create, "create"),
    (Figure::CreateAndExec, "create_and_exec"),
    (Figure::Exec, "exec"),
    (Figure::Fork, "fork"),
    (Figure::Delete, "delete"),
];

/// Samples of every figure, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub struct Figures([Vec<f64>; FIGURES.len()]);

/// One figure in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    name: &'static str,
    count: usize,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    samples_ms: Vec<f64>,
}

impl Figures {
    /// Adds a sample.
    pub fn push(&mut self, figure: Figure, took: std::time::Duration) {
        // Microseconds are finer than anything that crosses a network.
        self.0[figure as usize].push((took.as_secs_f64() * 1e6).round() / 1e3);
    }

    /// Everything that several workers measured.
    pub fn merged(parts: Vec<Figures>) -> Self {
        let mut whole = Self::default();
        for part in parts {
            whole.0.iter_mut().zip(part.0).for_each(|(all, more)| all.extend(more));
        }
        whole
    }

    /// Those that have samples.
    pub fn summaries(&self) -> Vec<Summary> {
        let measured = FIGURES.iter().map(|(figure, name)| (*name, &self.0[*figure as usize]));
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

/// The smallest sample that at least so many percent of all are not above (nearest rank).
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// For people.
pub fn table(summaries: &[Summary]) -> String {
    let header = ["FIGURE", "N", "P50", "P90", "P99"].map(str::to_owned);
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
    fn percentiles_are_samples() {
        let sorted: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(
            [50, 90, 99].map(|percent| percentile(&sorted, percent)),
            [Some(5.0), Some(9.0), Some(10.0)]
        );
    }

    #[test]
    fn workers_figures_are_put_together_and_shown() {
        let mut one = Figures::default();
        one.push(Figure::Create, Duration::from_micros(12_340));
        let mut other = Figures::default();
        other.push(Figure::Create, Duration::from_micros(8_000));
        other.push(Figure::Delete, Duration::from_millis(3));
        let summaries = Figures::merged(vec![one, other]).summaries();
        assert_eq!(summaries[0].samples_ms, [12.34, 8.0]);
        assert_eq!(
            table(&summaries),
            "FIGURE  N  P50     P90      P99\ncreate  2  8.0 ms  12.3 ms  12.3 ms\ndelete  1  3.0 ms  3.0 ms   3.0 ms"
        );
    }
}
