//! `pandastack sandbox events` and `ports`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use super::resolve;
use crate::output::Output;

/// What happened to it.
pub async fn events(client: &Client, text: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, text).await?;
    let events = client.list_events(&id).await?;
    output.table(&events, ["AT", "WHAT", "DETAIL"], |event| {
        [event.at.to_string(), event.kind.clone(), event.detail.clone().unwrap_or_default()]
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What listens in it.
pub async fn ports(client: &Client, text: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, text).await?;
    let ports = client.list_ports(&id).await?;
    output.table(&ports, ["PORT", "ADDRESS"], |port| [port.port.to_string(), port.address.clone()])?;
    Ok(ExitCode::SUCCESS)
}
