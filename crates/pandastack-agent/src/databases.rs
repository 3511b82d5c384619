//! Connections of machines to their attached databases.
//!
//! ```text
//!   guest --192.0.0.1:5432--> agent --upgrade, with the sandbox's id--> control --grant--> the database's machine
//! ```
//!
//! The agent identifies the machine and copies bytes; control decides for every connection which
//! databases the machine may reach. So this module keeps no state, and sleep, wake, forks and
//! restarts of this agent change nothing.
//!
//! Must hold: a machine is identified by the slot that its connection came from, never by data it
//! sends; during a restart of control the connection waits, so that programs only see a slow
//! connection.

use std::sync::Arc;
use std::time::Duration;

use pandastack_net::{DatabaseCall, SlotIndex};
use pandastack_types::SandboxId;
use pandastack_types::agent_api::{DATABASE_UPGRADE, internal};
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};
use tokio::io::{AsyncWriteExt, copy};
use tokio::time::Instant;

use crate::control::ControlServer;
use crate::host::Host;

/// Longest wait for a control server; then the connection is closed.
const CONTROL_WAIT: Duration = Duration::from_secs(20);
/// Between two tries.
const CONTROL_RETRY: Duration = Duration::from_millis(250);

/// Passes connections on until the agent stops.
pub(crate) async fn run(host: Arc<Host>) {
    let Some(mut calls) = host.slots.database_calls() else { return };
    let servers = Arc::new(ControlServer::all(&host));
    loop {
        let call = tokio::select! {
            call = calls.recv() => call,
            () = host.shutdown.cancelled() => return,
        };
        let Some(call) = call else { return };
        let (host, servers) = (Arc::clone(&host), Arc::clone(&servers));
        host.tasks.clone().spawn(async move {
            let (slot, ended) = (call.slot, call.ended.clone());
            tokio::select! {
                passed = pass(&host, &servers, call) => if let Err(error) = passed {
                    tracing::info!(%slot, error = format!("{error:#}"), "a connection to a database ended");
                },
                () = ended.cancelled() => {}
                () = host.shutdown.cancelled() => {}
            }
        });
    }
}

async fn pass(host: &Host, servers: &[ControlServer], mut call: DatabaseCall) -> anyhow::Result<()> {
    call.stream.set_nodelay(true)?;
    // Its machine was stopped while the connection waited.
    let Some(sandbox) = sandbox_of(host, call.slot) else { return Ok(()) };
    let Some(control) = reach(host, servers, &sandbox).await? else { return Ok(()) };
    let (mut from_control, mut to_control) = tokio::io::split(control);
    let (mut from_guest, mut to_guest) = call.stream.split();
    // A session ends when either side closes it: PostgreSQL has no half-open connections.
    tokio::select! {
        said = copy(&mut from_guest, &mut to_control) => drop(said?),
        answered = copy(&mut from_control, &mut to_guest) => {
            answered?;
            to_guest.shutdown().await?;
        }
    }
    Ok(())
}

/// The sandbox in a slot, found by address.
fn sandbox_of(host: &Host, slot: SlotIndex) -> Option<SandboxId> {
    let address = host.slots.address(slot).to_string();
    let handles = host.sandboxes();
    let views = handles.values().map(|handle| handle.view());
    views.into_iter().find(|view| view.guest_ip.as_ref() == Some(&address)).map(|view| view.id)
}

/// A stream to the first control server that answers. `None` if it does not want it.
async fn reach(
    host: &Host,
    servers: &[ControlServer],
    sandbox: &SandboxId,
) -> anyhow::Result<Option<Upgraded>> {
    let deadline = Instant::now() + CONTROL_WAIT;
    loop {
        let mut last = None;
        for server in servers {
            match request_connection(host, server, sandbox).await {
                Ok(answered) => return Ok(answered),
                Err(error) => last = Some(error.context(format!("asking {}", server.name))),
            }
        }
        if let Some(error) = last.filter(|_| Instant::now() >= deadline) {
            return Err(error);
        }
        tokio::time::sleep(CONTROL_RETRY).await;
    }
}

async fn request_connection(
    host: &Host,
    server: &ControlServer,
    sandbox: &SandboxId,
) -> anyhow::Result<Option<Upgraded>> {
    let path = internal::databases(sandbox);
    let request = server.call(host, Method::GET, &path);
    let response = request.header(CONNECTION, "upgrade").header(UPGRADE, DATABASE_UPGRADE).send().await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Ok(Some(response.upgrade().await?)),
        status => {
            let said = response.text().await.unwrap_or_default();
            anyhow::ensure!(status.is_client_error(), "{status}: {said}");
            tracing::info!(%sandbox, %status, said, "control refused a connection of this machine");
            Ok(None)
        }
    }
}
