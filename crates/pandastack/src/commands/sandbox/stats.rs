//! `pandastack sandbox stats`: current resource usage of a sandbox.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::SandboxMetrics;

use super::resolve::resolve;
use crate::output::{Output, fields, size};

/// Prints current usage.
pub async fn run(client: &Client, text: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, text).await?;
    let metrics = client.sandbox_metrics(&id).await?;
    output.value(&metrics, details)?;
    Ok(ExitCode::SUCCESS)
}

fn details(metrics: &SandboxMetrics) -> String {
    let host = &metrics.host;
    let mut rows = vec![
        ("status", metrics.status.as_str().to_owned()),
        ("cpu", format!("{}% of {} vCPU, {} ms total", host.cpu_used_percent, host.cpu_count, host.cpu_ms)),
        ("memory", format!("{} of {}", size(host.memory_bytes), size(host.memory_limit_bytes))),
        ("disk", size(host.disk_bytes)),
        ("network", format!("{} sent, {} received", size(host.sent_bytes), size(host.received_bytes))),
    ];
    if metrics.egress_denied > 0 {
        rows.push(("denied", format!("{} connections and DNS queries", metrics.egress_denied)));
    }
    if let Some(guest) = &metrics.guest {
        rows.extend([
            ("guest load", format!("{:.2}", guest.load_1m)),
            (
                "guest memory",
                format!("{} of {}", size(guest.memory_used_bytes), size(guest.memory_total_bytes)),
            ),
            ("guest disk", format!("{} of {}", size(guest.disk_used_bytes), size(guest.disk_total_bytes))),
            ("guest processes", guest.processes_running.to_string()),
        ]);
    }
    fields(&rows)
}
