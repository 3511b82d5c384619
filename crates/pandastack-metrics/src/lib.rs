//! Metrics of the platform's programs, in the Prometheus text format.
//!
//! - Labels are few and known in advance: routes, states and hosts, never ids of sandboxes.
//! - A service keeps its histograms and adds them to a page when asked. Values that others count,
//!   such as the kernel or the database, are read at that moment.

#![forbid(unsafe_code)]

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
};

/// The media type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets of latencies.
const BUCKETS_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// A histogram of durations, by labels.
#[derive(Debug, Clone)]
pub struct Latencies(HistogramVec);

impl Latencies {
    /// Creates an empty histogram.
    ///
    /// # Panics
    ///
    /// If a name is not valid in Prometheus. Names are constants.
    pub fn new(name: &str, help: &str, labels: &[&str]) -> Self {
        let options = HistogramOpts::new(name, help).buckets(BUCKETS_SECONDS.to_vec());
        Self(HistogramVec::new(options, labels).expect("names of metrics are valid"))
    }

    /// Adds a sample. As many values as there are labels, in their order.
    ///
    /// # Panics
    ///
    /// If there are more or fewer.
    pub fn observe(&self, values: &[&str], seconds: f64) {
        self.0.with_label_values(values).observe(seconds);
    }
}

/// A page that is being written.
#[derive(Debug, Default)]
pub struct Page(Registry);

impl Page {
    /// Adds a histogram.
    pub fn latencies(&mut self, latencies: &Latencies) {
        self.add(latencies.0.clone());
    }

    /// Adds one gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::new(name, help).expect("names of metrics are valid");
        gauge.set(value);
        self.add(gauge);
    }

    /// Adds one counter.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        let counter = Counter::new(name, help).expect("names of metrics are valid");
        counter.inc_by(value);
        self.add(counter);
    }

    /// Adds gauges by a label.
    pub fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, f64)>,
    ) {
        let gauges = GaugeVec::new(Opts::new(name, help), &[label]).expect("names of metrics are valid");
        for (of, value) in values {
            gauges.with_label_values(&[of.as_ref()]).set(value);
        }
        self.add(gauges);
    }

    /// Adds counters by a label.
    pub fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) {
        let counters =
            IntCounterVec::new(Opts::new(name, help), &[label]).expect("names of metrics are valid");
        for (of, value) in values {
            counters.with_label_values(&[of.as_ref()]).inc_by(value);
        }
        self.add(counters);
    }

    fn add(&mut self, collector: impl Collector + 'static) {
        self.0.register(Box::new(collector)).expect("a metric is added to a page once");
    }

    /// The page. Metrics without samples are left out.
    pub fn into_text(self) -> String {
        TextEncoder::new().encode_to_string(&self.0.gather()).expect("every gathered metric can be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_page_contains_the_recorded_values() {
        let latencies = Latencies::new("x_seconds", "X.", &["kind"]);
        latencies.observe(&["a"], 0.002);
        latencies.observe(&["a"], 60.0);
        let mut page = Page::default();
        page.latencies(&latencies);
        page.latencies(&Latencies::new("unused_seconds", "Nothing.", &["kind"]));
        page.gauge("g", "G.", 1.0);
        page.counter("c_total", "C.", 2.5);
        page.gauges("states", "S.", "state", [("off", 3.0), ("a \"quoted\" one", 4.0)]);
        page.counters("requests_total", "R.", "status", [("2xx".to_owned(), 7)]);
        let text = page.into_text();
        for line in [
            "# HELP x_seconds X.",
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{kind=\"a\",le=\"0.001\"} 0",
            "x_seconds_bucket{kind=\"a\",le=\"0.0025\"} 1",
            "x_seconds_bucket{kind=\"a\",le=\"+Inf\"} 2",
            "x_seconds_count{kind=\"a\"} 2",
            "g 1",
            "# TYPE c_total counter",
            "c_total 2.5",
            "states{state=\"off\"} 3",
            "states{state=\"a \\\"quoted\\\" one\"} 4",
            "requests_total{status=\"2xx\"} 7",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        assert!(!text.contains("unused"), "{text}");
    }
}
