//! Counters for `/metrics`, in the Prometheus text format. Labels are routes and statuses, never ids.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use pandastack_rest::metrics::Family;
use pandastack_types::SandboxState;
use pandastack_types::api::Host;

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

/// What happened so far.
pub(crate) struct Metrics {
    requests: Family,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { requests: Family::new("pandastack_http_request_seconds", "Time to the head of the answer.") }
    }
}

impl Metrics {
    pub(crate) fn count_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        // Clients may invent methods; the standard ones are enough to tell.
        let method = match method {
            "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" => method,
            _ => "other",
        };
        let labels = format!("method=\"{method}\",route=\"{route}\",status=\"{status}\"");
        self.requests.observe(labels, took.as_secs_f64());
    }

    /// The whole page.
    pub(crate) fn render(
        &self,
        states: &[(SandboxState, u64)],
        hosts: &[Host],
        egress_denied: u64,
    ) -> String {
        let mut page = String::new();
        render_gauges(&mut page, states, hosts);
        render_process(&mut page);
        let _ = write!(
            page,
            "# HELP pandastack_egress_denied_total Connections and names that network policies refused.\n\
             # TYPE pandastack_egress_denied_total counter\npandastack_egress_denied_total {egress_denied}\n",
        );
        self.requests.render(&mut page);
        page
    }
}

/// What this process uses, as its kernel counts it.
fn render_process(page: &mut String) {
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
    let _ = write!(
        page,
        "# HELP pandastack_build_info The running version.\n# TYPE pandastack_build_info gauge\n\
         pandastack_build_info{{version=\"{version}\"}} 1\n\
         # HELP pandastack_process_resident_bytes Memory of the control process.\n\
         # TYPE pandastack_process_resident_bytes gauge\npandastack_process_resident_bytes {resident}\n\
         # HELP pandastack_process_cpu_seconds_total Processor time of the control process.\n\
         # TYPE pandastack_process_cpu_seconds_total counter\npandastack_process_cpu_seconds_total {}.{:02}\n\
         # HELP pandastack_process_open_files Open descriptors of the control process.\n\
         # TYPE pandastack_process_open_files gauge\npandastack_process_open_files {files}\n",
        ticks / 100,
        ticks % 100,
    );
}

fn render_gauges(page: &mut String, states: &[(SandboxState, u64)], hosts: &[Host]) {
    page.push_str("# HELP pandastack_sandboxes Sandboxes by state.\n# TYPE pandastack_sandboxes gauge\n");
    for &state in SandboxState::ALL.iter().filter(|state| **state != SandboxState::Deleted) {
        let count = states.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count);
        let _ = writeln!(page, "pandastack_sandboxes{{state=\"{}\"}} {count}", state.as_str());
    }
    let gauge = |page: &mut String, name: &str, help: &str, value: &dyn Fn(&Host) -> u64| {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge");
        for host in hosts {
            let _ = writeln!(page, "{name}{{host=\"{}\"}} {}", host.id, value(host));
        }
    };
    gauge(page, "pandastack_host_reachable", "1 while the host reports.", &|h| u64::from(h.reachable));
    gauge(page, "pandastack_host_memory_free_mb", "Memory not promised.", &|h| h.memory_free_mb);
    gauge(page, "pandastack_host_sandboxes", "Sandboxes on the host.", &|h| h.sandboxes);
    gauge(page, "pandastack_host_disk_free_bytes", "Free space of the store.", &|h| h.disk_free_bytes);
}
