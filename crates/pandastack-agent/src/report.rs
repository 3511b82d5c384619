//! Reports to control. Each is complete and sent after every change and every few seconds, so the next
//! report repairs a lost one. Of several control servers any will do; the next one is tried when one
//! does not respond.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::agent_api::{HostReport, REPORT_SECONDS, ReportAnswer, internal};
use pandastack_types::{SnapshotId, chain};
use reqwest::Method;

use crate::control::ControlServer;
use crate::host::Host;
use crate::sandbox::handle::SandboxHandle;

/// The host's current report.
pub(crate) fn report(host: &Host) -> HostReport {
    let capabilities = host.engine.capabilities();
    let sandboxes = host.sandboxes().values().map(SandboxHandle::view).collect();
    let slots = host.slots.stats();
    HostReport {
        host: host.config.host.clone(),
        address: host.link.address(&host.config.listen, host.config.advertise.as_deref()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: capabilities.name.to_owned(),
        isolation: capabilities.isolation.as_str().to_owned(),
        memory_total_mb: host.memory_total_mb(),
        memory_free_mb: host.memory_free_mb(),
        memory_held_asleep_mb: host.memory_held_asleep_mb(),
        memory_promised_percent: host.memory_promised_percent(),
        disk_free_bytes: host.store.free_space().map_or(0, |space| space.available_bytes()),
        slots_free: u32::try_from(slots.capacity.saturating_sub(slots.in_use)).unwrap_or(u32::MAX),
        templates: host.templates.list(),
        sandboxes,
        snapshots: snapshots(host),
        volumes: crate::volume::all(&host.layout),
        denials: Vec::new(),
        at: Timestamp::now(),
    }
}

fn snapshots(host: &Host) -> Vec<SnapshotId> {
    let dirs = std::fs::read_dir(host.layout.snapshots()).into_iter().flatten().flatten();
    dirs.filter_map(|dir| dir.file_name().to_str()?.parse().ok()).collect()
}

/// Reports until the agent stops.
pub(crate) async fn run(host: Arc<Host>) {
    let servers = ControlServer::all(&host);
    let (mut answered, mut turn) = (true, 0);
    loop {
        let server = &servers[turn % servers.len()];
        match send(&host, server).await {
            Ok(answer) => {
                if !answered {
                    tracing::info!("control is reachable again");
                }
                answered = true;
                let offer = answer.migrate.clone().filter(|_| server.is_remote());
                apply_answer(&host, answer).await;
                if let Some(offer) = offer {
                    match host.link.migrate(&server.name, &offer).await {
                        // Control learns the new address at once.
                        Ok(()) => host.changed.notify_one(),
                        Err(error) => {
                            let error = format!("{error:#}");
                            tracing::warn!(
                                error,
                                "cannot get a certificate; trying again with the next report"
                            );
                        }
                    }
                }
            }
            Err(error) => {
                if answered {
                    let error = format!("{error:#}");
                    tracing::warn!(
                        error,
                        control = server.name,
                        "control is not responding; machines keep running"
                    );
                }
                answered = false;
                turn += 1;
            }
        }
        tokio::select! {
            () = host.shutdown.cancelled() => return,
            () = host.changed.notified(), if answered => {}
            () = tokio::time::sleep(Duration::from_secs(if answered { REPORT_SECONDS } else { 1 })) => {}
        }
    }
}

async fn send(host: &Host, server: &ControlServer) -> anyhow::Result<ReportAnswer> {
    let path = internal::host_report(&host.config.host);
    let denials = host.denials.take();
    let body = HostReport { denials: denials.clone(), ..report(host) };
    let request = server.call(host, Method::POST, &path).json(&body);
    let answered = async {
        let response = request.send().await?;
        if !response.status().is_success() {
            anyhow::bail!("{}: {}", response.status(), response.text().await.unwrap_or_default());
        }
        Ok(response.json().await?)
    };
    let answer = answered.await;
    if answer.is_err() {
        host.denials.put(denials);
    }
    answer
}

/// Removes what control does not know: leftovers of creates whose answer was lost and of deletes that found us down.
async fn apply_answer(host: &Arc<Host>, answer: ReportAnswer) {
    host.note_shared(answer.shared);
    host.link.set_edges(answer.edges);
    for id in answer.forget_sandboxes {
        if let Ok(handle) = host.sandbox(&id) {
            tracing::info!(sandbox = %id, "control does not know this sandbox; removing it");
            if let Err(error) = handle.delete().await {
                tracing::warn!(
                    sandbox = %id, error = %chain(&error),
                    "cannot remove a sandbox; retrying at the next report"
                );
            }
        }
    }
    for id in answer.forget_snapshots {
        tracing::info!(snapshot = %id, "control does not know this snapshot; removing it");
        host.remove_snapshot(&id).await;
    }
}
