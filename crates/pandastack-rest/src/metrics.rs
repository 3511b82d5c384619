//! Histograms for `/metrics`, in the Prometheus text format. Labels are routes and statuses, never ids.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Upper bounds of the latency histogram.
const BUCKETS_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS_SECONDS.len()],
    count: u64,
    sum_seconds: f64,
}

/// Histograms of one name, by labels. Labels are few and never ids.
pub struct Family {
    name: &'static str,
    help: &'static str,
    series: Mutex<BTreeMap<String, Histogram>>,
}

impl Family {
    /// Without any samples.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds a sample; `labels` as they stand in the page, without braces.
    pub fn observe(&self, labels: String, seconds: f64) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = series.entry(labels).or_default();
        histogram.count += 1;
        histogram.sum_seconds += seconds;
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS_SECONDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Writes it to the page.
    pub fn render(&self, page: &mut String) {
        let Self { name, help, series } = self;
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let series = series.lock().unwrap_or_else(PoisonError::into_inner);
        for (labels, histogram) in series.iter() {
            let before = if labels.is_empty() { String::new() } else { format!("{labels},") };
            let around = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS_SECONDS) {
                let _ = writeln!(page, "{name}_bucket{{{before}le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(page, "{name}_bucket{{{before}le=\"+Inf\"}} {}", histogram.count);
            let _ = writeln!(page, "{name}_sum{around} {}", histogram.sum_seconds);
            let _ = writeln!(page, "{name}_count{around} {}", histogram.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_counts_by_labels_and_bounds() {
        let family = Family::new("x_seconds", "X.");
        family.observe("kind=\"a\"".to_owned(), 0.002);
        family.observe("kind=\"a\"".to_owned(), 60.0);
        family.observe(String::new(), 1.0);
        let mut page = String::new();
        family.render(&mut page);
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{kind=\"a\",le=\"0.001\"} 0",
            "x_seconds_bucket{kind=\"a\",le=\"0.0025\"} 1",
            "x_seconds_bucket{kind=\"a\",le=\"+Inf\"} 2",
            "x_seconds_count{kind=\"a\"} 2",
            "x_seconds_bucket{le=\"1\"} 1",
            "x_seconds_sum 1",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} in {page}");
        }
    }
}
