//! `pandastack app metrics`: current resource usage of an app.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxState;
use pandastack_types::api::{AppInstanceMetrics, AppMetrics, HostView};

use crate::output::{Output, align, fields, size};

/// Prints total usage and usage per instance.
pub(super) async fn run(client: &Client, app: &str, output: Output) -> Result<ExitCode> {
    output.value(&client.app_metrics(app).await?, details)?;
    Ok(ExitCode::SUCCESS)
}

fn details(metrics: &AppMetrics) -> String {
    let (all, total) = (&metrics.instances, &metrics.total);
    let running = all.iter().filter(|one| one.status == SandboxState::Running).count();
    let sums = fields(&[
        ("instances", format!("{running} of {} running", all.len())),
        ("cpu", format!("{}, {} ms total", cpu(total), total.cpu_ms)),
        ("memory", memory(total)),
        ("disk", size(total.disk_bytes)),
        ("network", format!("{} sent, {} received", size(total.sent_bytes), size(total.received_bytes))),
    ]);
    if all.is_empty() {
        return sums;
    }
    let head = ["INSTANCE", "STATUS", "CPU", "MEMORY"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(all.iter().map(row)).collect();
    format!("{sums}\n\n{}", align(&rows))
}

fn row(one: &AppInstanceMetrics) -> [String; 4] {
    let shown = |how: fn(&HostView) -> String| one.host.as_ref().map_or_else(|| "?".to_owned(), how);
    [one.sandbox_id.to_string(), one.status.as_str().to_owned(), shown(cpu), shown(memory)]
}

fn cpu(host: &HostView) -> String {
    format!("{}% of {} vCPU", host.cpu_used_percent, host.cpu_count)
}

fn memory(host: &HostView) -> String {
    format!("{} of {}", size(host.memory_bytes), size(host.memory_limit_bytes))
}
