//! Metrics of control for `/metrics`. Labels are routes and statuses, never ids.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use pandastack_metrics::{Latencies, Page};
use pandastack_types::SandboxState;
use pandastack_types::api::Host;

/// Unit in which Linux reports processor time.
const TICKS_PER_SECOND: f64 = 100.0;

/// Layer that counts and times requests.
pub(crate) async fn counted(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    metrics.count_request(method.as_str(), route, response.status().as_u16(), began.elapsed());
    response
}

/// Counters of the control server.
pub(crate) struct Metrics {
    requests: Latencies,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Latencies::new(
                "pandastack_http_request_seconds",
                "Time to the head of the answer.",
                &["method", "route", "status"],
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn count_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        // Clients may invent methods, so only the standard ones become labels.
        let method = match method {
            "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" => method,
            _ => "other",
        };
        self.requests.observe(&[method, route, &status.to_string()], took.as_secs_f64());
    }

    /// Adds counters, and metrics of sandboxes and hosts, to a page.
    pub(crate) fn add_to(
        &self,
        page: &mut Page,
        states: &[(SandboxState, u64)],
        hosts: &[Host],
        egress_denied: u64,
    ) {
        add_gauges(page, states, hosts);
        add_process(page);
        page.counter(
            "pandastack_egress_denied_total",
            "Connections and names that network policies refused.",
            egress_denied as f64,
        );
        page.latencies(&self.requests);
    }
}

/// Adds this process's resource usage, as its kernel counts it.
fn add_process(page: &mut Page) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let status = read("status");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident =
        kib.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024;
    // After the name in parentheses, which may contain anything: user and system time are the 12th and 13th field.
    let stat = read("stat");
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let version = env!("CARGO_PKG_VERSION");
    page.gauges("pandastack_build_info", "The running version.", "version", [(version, 1.0)]);
    let gauges = [
        ("pandastack_process_resident_bytes", "Memory of the control process.", resident as f64),
        ("pandastack_process_open_files", "Open descriptors of the control process.", files as f64),
    ];
    gauges.into_iter().for_each(|(name, help, value)| page.gauge(name, help, value));
    page.counter(
        "pandastack_process_cpu_seconds_total",
        "Processor time of the control process.",
        ticks as f64 / TICKS_PER_SECOND,
    );
}

fn add_gauges(page: &mut Page, states: &[(SandboxState, u64)], hosts: &[Host]) {
    let count = |state| states.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count);
    let shown = SandboxState::ALL.iter().filter(|state| **state != SandboxState::Deleted);
    let counts = shown.map(|&state| (state.as_str(), count(state) as f64));
    page.gauges("pandastack_sandboxes", "Sandboxes by state.", "state", counts);
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Host) -> u64| {
        page.gauges(name, help, "host", hosts.iter().map(|host| (host.id.to_string(), value(host) as f64)));
    };
    gauge("pandastack_host_reachable", "1 while the host reports.", &|h| u64::from(h.reachable));
    gauge("pandastack_host_memory_free_mb", "Memory not promised.", &|h| h.memory_free_mb);
    gauge("pandastack_host_sandboxes", "Sandboxes on the host.", &|h| h.sandboxes);
    gauge("pandastack_host_disk_free_bytes", "Free space of the store.", &|h| h.disk_free_bytes);
}
