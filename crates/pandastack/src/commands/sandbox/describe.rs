//! `pandastack sandbox list` and `get`.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::Residency;
use pandastack_types::api::Sandbox;

use super::resolve::resolve;
use crate::commands::each::show_each;
use crate::output::{Output, age, fields};

/// Lists sandboxes.
pub async fn list(client: &Client, output: Output) -> Result<ExitCode> {
    let sandboxes = client.list_sandboxes().await?;
    let now = Timestamp::now();
    let columns = ["ID", "NAME", "TEMPLATE", "STATUS", "AGE", "EXPIRES", "MEMORY", "ISOLATION", "HOST"];
    let row = |sandbox: &Sandbox| {
        [
            sandbox.id.to_string(),
            sandbox.name.clone().unwrap_or_else(|| "-".to_owned()),
            sandbox.template.clone(),
            status(sandbox),
            age(sandbox.created_at, now),
            sandbox.expires_at.map_or_else(|| "-".to_owned(), |at| format!("in {}", age(now, at))),
            format!("{} MiB", sandbox.memory_mb),
            sandbox.isolation.clone(),
            sandbox.host.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        ]
    };
    let more = |sandbox: &Sandbox| {
        [
            sandbox.cpu.to_string(),
            sandbox.engine.clone(),
            sandbox.guest_ip.clone().unwrap_or_else(|| "-".to_owned()),
            sandbox.parent_id.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            labels(sandbox),
        ]
    };
    let more_columns = ["CPU", "ENGINE", "ADDRESS", "PARENT", "METADATA"];
    output.wide_table(&sandboxes, columns, row, more_columns, more)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows sandboxes.
pub async fn get(client: &Client, names: &[String], output: Output) -> Result<ExitCode> {
    let fetch = async |text: &str| {
        let id = resolve(client, text).await?;
        Ok(client.get_sandbox(&id).await?)
    };
    show_each(names, output, fetch, details).await
}

fn details(sandbox: &Sandbox) -> String {
    let optional = |value: Option<String>| value.unwrap_or_default();
    fields(&[
        ("id", sandbox.id.to_string()),
        ("name", optional(sandbox.name.clone())),
        ("status", status(sandbox)),
        ("template", sandbox.template.clone()),
        ("size", format!("{} vCPU, {} MiB", sandbox.cpu, sandbox.memory_mb)),
        ("engine", format!("{} ({} isolation)", sandbox.engine, sandbox.isolation)),
        ("host", optional(sandbox.host.as_ref().map(ToString::to_string))),
        ("address", optional(sandbox.guest_ip.clone())),
        ("started by", started_by(sandbox)),
        ("parent", optional(sandbox.parent_id.as_ref().map(ToString::to_string))),
        ("snapshot", optional(sandbox.from_snapshot.as_ref().map(ToString::to_string))),
        ("created", sandbox.created_at.to_string()),
        ("expires", optional(sandbox.expires_at.map(|at| at.to_string()))),
        ("metadata", labels(sandbox)),
        ("failure", optional(sandbox.failure.clone())),
    ])
}

fn labels(sandbox: &Sandbox) -> String {
    let labels = sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}"));
    labels.collect::<Vec<_>>().join(", ")
}

fn started_by(sandbox: &Sandbox) -> String {
    match (&sandbox.boot_mode, sandbox.boot_ms) {
        (Some(mode), Some(ms)) => format!("{mode} in {ms} ms"),
        (Some(mode), None) => mode.clone(),
        _ => String::new(),
    }
}

/// The status, with its residency and whether the host is reachable.
fn status(sandbox: &Sandbox) -> String {
    let word = match sandbox.residency {
        Some(Residency::Memory) => "hibernated (in memory)",
        _ => sandbox.status.as_str(),
    };
    if sandbox.host_reachable { word.to_owned() } else { format!("{word} (host unreachable)") }
}
