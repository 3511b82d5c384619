//! `pandastack sandbox events` and `ports`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use tokio::signal::unix::{SignalKind, signal};

use super::resolve::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Follow new events until Ctrl-C or until the sandbox is deleted
    #[arg(long, short)]
    follow: bool,
}

/// Prints the events of a sandbox.
pub async fn events(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    if args.follow {
        return follow(client, &id, output).await;
    }
    let events = client.list_events(&id).await?;
    output.table(&events, ["TIME", "EVENT", "DETAIL"], |event| {
        [event.at.to_string(), event.kind.clone(), event.detail.clone().unwrap_or_default()]
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn follow(client: &Client, id: &SandboxId, output: Output) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut events = client.follow_events(id).await?;
    loop {
        tokio::select! {
            event = events.next() => match event? {
                Some(event) if output.is_json() => output.line(&serde_json::to_string(&event)?)?,
                Some(event) => {
                    let detail = event.detail.unwrap_or_default();
                    output.line(format!("{}  {:<10}  {detail}", event.at, event.kind).trim_end())?;
                }
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Prints listening ports.
pub async fn ports(client: &Client, text: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, text).await?;
    let ports = client.list_ports(&id).await?;
    output.table(&ports, ["PORT", "ADDRESS", "URL"], |port| {
        let url = port.proxy_url.clone().unwrap_or_else(|| "-".to_owned());
        [port.port.to_string(), port.address.clone(), url]
    })?;
    Ok(ExitCode::SUCCESS)
}
