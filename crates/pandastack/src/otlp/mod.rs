//! Traces and metrics for a collector, by OTLP over HTTP in its JSON form, which every collector takes on port 4318.
//!
//! ```text
//!   spans of this process --> a bounded queue --> one thread: batches --> POST <endpoint>/v1/traces
//!   this process's /metrics (control) ----------> every 15 s         --> POST <endpoint>/v1/metrics
//! ```
//!
//! The trace of a request is derived from its request id, which control hands on to agents. So the spans of all processes
//! meet in one trace, and whoever has an answer's `x-request-id` can compute it.
//!
//! Must hold: nothing here slows down or fails a request. A collector that is slow or gone costs spans, never anything else;
//! how many were lost is logged.
//!
//! Left to others: sampling and keeping, which are the collector's.

mod json;
mod layer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::Value;

pub use layer::SpanLayer;

/// Spans that wait to be sent. Beyond it they are dropped, and counted.
pub const SPANS_QUEUED_MAX: usize = 8192;
/// Spans in one message.
const BATCH_MAX: usize = 512;
/// Longest wait of a span for company.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// How often metrics are sent.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// Longest time for one message.
const SEND_MAX: Duration = Duration::from_secs(5);

/// What is exported, and where to.
#[derive(Debug, Clone)]
pub struct Export {
    /// The collector's address, such as `http://localhost:4318`.
    pub endpoint: String,
    /// `control`, `agent` or `edge`.
    pub role: &'static str,
    /// Where this process shows its metrics in Prometheus' form.
    pub metrics_url: Option<String>,
}

/// A span that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: &'static str,
    began: SystemTime,
    ended: SystemTime,
    fields: Vec<(&'static str, String)>,
}

/// The end of the queue at which spans are put in.
#[derive(Debug, Clone)]
pub struct Queue {
    sender: SyncSender<Span>,
    lost: Arc<AtomicU64>,
}

impl Queue {
    fn put(&self, span: Span) {
        if self.sender.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Starts the thread that sends. It ends with the process, or when the layer is dropped.
pub fn start(export: Export) -> Result<SpanLayer> {
    let (sender, receiver) = sync_channel(SPANS_QUEUED_MAX);
    let queue = Queue { sender, lost: Arc::default() };
    let lost = Arc::clone(&queue.lost);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime of the exporter")?;
    let http = pandastack_http::builder_for(&export.endpoint).timeout(SEND_MAX).build();
    let http = http.context("prepare the exporter")?;
    let sender = Sender { export, http, lost, last_metrics: Instant::now() };
    let thread = std::thread::Builder::new().name("otlp".to_owned());
    thread.spawn(move || sender.run(&runtime, &receiver)).context("start the exporter's thread")?;
    Ok(SpanLayer::new(queue))
}

struct Sender {
    export: Export,
    http: reqwest::Client,
    lost: Arc<AtomicU64>,
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
                tracing::warn!(%error, endpoint = self.export.endpoint, "the collector does not take traces or metrics");
            }
            failing = failed.is_some();
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                tracing::warn!(lost, "spans were dropped: they came faster than the collector took them");
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

/// What came within [`FLUSH_EVERY`], and whether more may come.
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

    /// A collector that hands on what it gets.
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
    async fn spans_reach_a_collector_and_meet_in_the_trace_of_their_request() {
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
    fn a_full_queue_costs_spans_and_says_how_many() {
        let (sender, receiver) = sync_channel(SPANS_QUEUED_MAX);
        let queue = Queue { sender, lost: Arc::default() };
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
        assert_eq!(queue.lock().unwrap().lost.load(Ordering::Relaxed), 3);
        drop(queue);
        let (batch, open) = next_batch(&receiver);
        assert_eq!((batch.len(), open), (BATCH_MAX, true));
    }
}
