//! Exports traces and metrics as OTLP/HTTP with JSON, which every collector accepts on port 4318.
//!
//! ```text
//!   spans of this process --> a bounded queue --> one thread: batches --> POST <endpoint>/v1/traces
//!   this process's /metrics (control) ----------> every 15 s         --> POST <endpoint>/v1/metrics
//! ```
//!
//! The trace id is derived from the request id, which control passes to agents. The spans of all
//! processes therefore belong to one trace, and the `x-request-id` of a response identifies it.
//!
//! Invariant: the exporter never slows down or fails a request. If the collector is slow or
//! unreachable, spans are dropped and their number is logged.
//!
//! The JSON is written here: it is two messages of a stable format, and the usual crates bring an SDK, protobuf and a
//! second way to trace. Sampling and storage are left to the collector.

mod json;
mod layer;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::Value;

pub use layer::SpanLayer;
use span::{Queue, Span};

/// Maximum number of queued spans. Further spans are dropped and counted.
pub const SPANS_QUEUED_MAX: usize = 8192;
/// Maximum number of spans in one message.
const BATCH_MAX: usize = 512;
/// Longest time a span waits to be sent.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Interval between metrics messages.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// Timeout of one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Export configuration of a role.
#[derive(Debug, Clone)]
pub struct Export {
    /// The collector's address, such as `http://localhost:4318`.
    pub endpoint: String,
    /// `control`, `agent` or `edge`.
    pub role: &'static str,
    /// URL of this process's metrics in the Prometheus format.
    pub metrics_url: Option<String>,
}

/// Starts the exporter thread. It ends with the process or when the layer is dropped.
pub fn start(export: Export) -> Result<SpanLayer> {
    let (sender, receiver) = sync_channel(SPANS_QUEUED_MAX);
    let queue = Queue { sender, dropped: Arc::default() };
    let dropped = Arc::clone(&queue.dropped);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the exporter's runtime")?;
    let http = pandastack_http::builder_for(&export.endpoint).timeout(SEND_TIMEOUT).build();
    let http = http.context("cannot set up the exporter")?;
    let sender = Sender { export, http, dropped, last_metrics: Instant::now() };
    let thread = std::thread::Builder::new().name("otlp".to_owned());
    thread.spawn(move || sender.run(&runtime, &receiver)).context("cannot start the exporter thread")?;
    Ok(SpanLayer::new(queue))
}

struct Sender {
    export: Export,
    http: reqwest::Client,
    dropped: Arc<AtomicU64>,
    last_metrics: Instant,
}

impl Sender {
    fn run(mut self, runtime: &tokio::runtime::Runtime, spans: &Receiver<Span>) {
        let mut failing = false;
        loop {
            let (batch, open) = next_batch(spans);
            let failed = runtime.block_on(self.send(&batch)).err();
            if let Some(error) = &failed
                && !failing
            {
                tracing::warn!(%error, endpoint = self.export.endpoint, "cannot send traces and metrics to the collector");
            }
            failing = failed.is_some();
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(dropped, "spans dropped: the collector is too slow");
            }
            if !open {
                return;
            }
        }
    }

    async fn send(&mut self, batch: &[Span]) -> Result<()> {
        if !batch.is_empty() {
            self.post("traces", &json::traces(self.export.role, batch)).await?;
        }
        let Some(url) = self.export.metrics_url.clone() else { return Ok(()) };
        if self.last_metrics.elapsed() >= METRICS_EVERY {
            self.last_metrics = Instant::now();
            let page = self.http.get(url).send().await?.error_for_status()?.text().await?;
            self.post("metrics", &json::metrics(self.export.role, &page, SystemTime::now())).await?;
        }
        Ok(())
    }

    async fn post(&self, what: &str, body: &Value) -> Result<()> {
        let url = format!("{}/v1/{what}", self.export.endpoint.trim_end_matches('/'));
        self.http.post(url).json(body).send().await?.error_for_status()?;
        Ok(())
    }
}

/// Spans received within [`FLUSH_EVERY`], and whether the queue is still open.
fn next_batch(spans: &Receiver<Span>) -> (Vec<Span>, bool) {
    let mut batch = Vec::new();
    let until = Instant::now() + FLUSH_EVERY;
    while batch.len() < BATCH_MAX {
        match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(span) => batch.push(span),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return (batch, false),
        }
    }
    (batch, true)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::extract::State;
    use axum::routing::post;
    use axum::{Json, Router};
    use tokio::sync::mpsc;
    use tracing_subscriber::prelude::*;

    use super::*;

    /// A collector that forwards what it receives.
    async fn collector() -> (String, mpsc::Receiver<Value>) {
        let (sender, receiver) = mpsc::channel(16);
        let take = |State(sender): State<mpsc::Sender<Value>>, Json(body): Json<Value>| async move {
            sender.send(body).await.unwrap();
            Json(serde_json::json!({}))
        };
        let router = Router::new().route("/v1/traces", post(take)).with_state(sender);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (format!("http://{address}/"), receiver)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn spans_reach_the_collector_in_the_trace_of_their_request() {
        let (endpoint, mut received) = collector().await;
        let layer = start(Export { endpoint, role: "control", metrics_url: None }).unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::info_span!(target: "pandastack_control", "request", id = "r-1", status = tracing::field::Empty);
            let _outer = outer.enter();
            tracing::info_span!(target: "pandastack_control", "inner", sandbox = "s").in_scope(|| {});
            tracing::info_span!(target: "hyper", "noise").in_scope(|| {});
            outer.record("status", 201);
        });
        let body = tokio::time::timeout(Duration::from_secs(10), received.recv()).await.unwrap().unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "pandastack-control");
        let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
        let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["inner", "request"], "only ours, as they end");
        assert_eq!(spans[0]["traceId"], spans[1]["traceId"]);
        assert_eq!(spans[0]["parentSpanId"], spans[1]["spanId"]);
        assert_eq!(spans[1]["traceId"], data_encoding::HEXLOWER.encode(&layer::trace_of("r-1")));
        let status = spans[1]["attributes"].as_array().unwrap().iter().find(|one| one["key"] == "status");
        assert_eq!(status.unwrap()["value"]["stringValue"], "201");
    }

    #[test]
    fn a_full_queue_drops_and_counts_spans() {
        let (sender, receiver) = sync_channel(SPANS_QUEUED_MAX);
        let queue = Queue { sender, dropped: Arc::default() };
        let span = Span {
            trace: [1; 16],
            id: [2; 8],
            parent: None,
            name: "n",
            began: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
            fields: Vec::new(),
        };
        let queue = Mutex::new(queue);
        for _ in 0..SPANS_QUEUED_MAX + 3 {
            queue.lock().unwrap().put(span.clone());
        }
        assert_eq!(queue.lock().unwrap().dropped.load(Ordering::Relaxed), 3);
        drop(queue);
        let (batch, open) = next_batch(&receiver);
        assert_eq!((batch.len(), open), (BATCH_MAX, true));
    }
}
