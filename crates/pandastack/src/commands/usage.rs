//! `pandastack usage`: resource usage of the workspace.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::{UsageReport, UsageTotals};

use super::runtime::with_client;
use crate::output::{Output, align, size};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Start of the period (RFC 3339) [default: 30 days ago]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let report = client.usage(args.from.as_deref(), args.to.as_deref()).await?;
        output.value(&report, describe)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn describe(report: &UsageReport) -> String {
    let header = ["SANDBOX", "CREATES", "CPU", "MEMORY", "ASLEEP", "SENT", "RECEIVED"].map(str::to_owned);
    let total = row("all".to_owned(), &report.total);
    let each = report.sandboxes.iter().map(|sandbox| row(sandbox.sandbox_id.to_string(), &sandbox.used));
    let table = align(&[header, total].into_iter().chain(each).collect::<Vec<_>>());
    let more = if report.truncated { "\nsome sandboxes are not shown; `all` includes them" } else { "" };
    format!("{} to {}\n\n{table}{more}", report.from, report.to)
}

fn row(name: String, used: &UsageTotals) -> [String; 7] {
    let hours = |seconds: u64| format!("{:.1} h", seconds as f64 / 3600.0);
    [
        name,
        used.creates.to_string(),
        format!("{:.1} s", used.cpu_ms as f64 / 1000.0),
        format!("{:.1} GiB h", used.memory_mb_seconds as f64 / 1024.0 / 3600.0),
        hours(used.asleep_seconds),
        size(used.sent_bytes),
        size(used.received_bytes),
    ]
}
