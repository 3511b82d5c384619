//! Samples of one figure and their percentiles.

use serde::Serialize;

/// Samples in milliseconds or another unit, in the order in which they were taken.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample that at least `percent` of all are not above (nearest rank); `None` without samples.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent / 100.0 * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted.get(rank - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_actual_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50.0), None);
        (1..=10).rev().for_each(|value| samples.push(f64::from(value)));
        assert_eq!(samples.percentile(50.0), Some(5.0));
        assert_eq!(samples.percentile(90.0), Some(9.0));
        assert_eq!(samples.percentile(99.0), Some(10.0));
    }
}
