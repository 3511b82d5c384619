//! Health checks of a new version, through the same path as its requests.

use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use pandastack_types::SandboxId;

use crate::state::Apps;

/// Timeout of one answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Sends one health check; returns the status, or the reason for a missing response.
pub(crate) async fn check(
    apps: &Apps,
    machine: &SandboxId,
    port: u16,
    path: &str,
    host: &str,
) -> Result<StatusCode, String> {
    let asked = tokio::time::timeout(ANSWER_WAIT, get(apps, machine, port, path, host)).await;
    asked.unwrap_or_else(|_| Err(format!("no response within {} s", ANSWER_WAIT.as_secs())))
}

async fn get(
    apps: &Apps,
    machine: &SandboxId,
    port: u16,
    path: &str,
    host: &str,
) -> Result<StatusCode, String> {
    let stream = apps.edge.tunnel(machine, port).await.map_err(|trouble| trouble.sentence(machine, port))?;
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| error.to_string())?;
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, "pandastack-health-check")
        .header(header::CONNECTION, "close")
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    // The connection may end at the moment the response arrives, so only `send_request` reports a
    // missing response.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<()>().await
    };
    tokio::select! {
        answer = sender.send_request(request) => {
            answer.map(|answer| answer.status()).map_err(|error| format!("no response: {error}"))
        }
        () = driven => Err("the app closed the connection".to_owned()),
    }
}
