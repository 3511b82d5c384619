//! Creates a sandbox; waits for its template to be built, if necessary, and shows the progress.

use std::time::Duration;

use anyhow::Result;
use pandastack_client::{Client, ClientError};
use pandastack_types::api::{BuildStatus, CreateSandbox, Sandbox};
use pandastack_types::{BuildId, ErrorCode};
use tokio_util::sync::CancellationToken;

use super::wait::or_interrupt;
use crate::failure::Failure;
use crate::progress::Progress;

/// Maximum attempts if the server asks to retry. Template builds are waited for, so more than two
/// are unusual.
pub const ATTEMPTS_MAX: u32 = 8;
/// Delay between attempts if the server does not specify one.
const RETRY_DEFAULT: Duration = Duration::from_secs(5);

/// Creates a sandbox, waiting for its template to be built.
pub async fn create(client: &Client, request: &CreateSandbox) -> Result<Sandbox> {
    let never = CancellationToken::new();
    let background = "if the sandbox was already created, `pandastack sandbox list` shows it";
    let created = or_interrupt(background, create_cancellable(client, request, &never)).await?;
    created.ok_or_else(|| Failure::new("the create was cancelled").into())
}

/// Like [`create`]; returns `None`, with nothing created, if `stop` is cancelled first.
pub async fn create_cancellable(
    client: &Client,
    request: &CreateSandbox,
    stop: &CancellationToken,
) -> Result<Option<Sandbox>> {
    let key = uuid::Uuid::new_v4().to_string();
    let progress = Progress::start("Creating sandbox");
    let mut attempt = 1;
    loop {
        // A call in flight is not cancelled, because it may create a sandbox.
        let error = match client.create_sandbox(request, &key).await {
            Ok(sandbox) => return Ok(Some(sandbox)),
            Err(error) => error,
        };
        if attempt == ATTEMPTS_MAX {
            return Err(error.into());
        }
        attempt += 1;
        tokio::select! {
            waited = wait_before_retry(client, error, &progress) => waited?,
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// Waits before a retry, or returns the error if a retry cannot help.
pub async fn wait_before_retry(client: &Client, error: ClientError, progress: &Progress) -> Result<()> {
    let ClientError::Refused { build_id, retry_after, message, .. } = &error else {
        return Err(error.into());
    };
    if error.is_code(ErrorCode::TemplateBaking) {
        if let Some(id) = build_id.as_deref().and_then(|id| id.parse::<BuildId>().ok()) {
            let background =
                format!("the template build continues; to follow it, run `pandastack template logs {id}`");
            return or_interrupt(&background, follow_build(client, &id, progress)).await;
        }
    } else if !error.is_code(ErrorCode::NoCapacity) && !error.is_code(ErrorCode::Unavailable) {
        return Err(error.into());
    }
    progress.step(message.clone());
    tokio::time::sleep(retry_after.unwrap_or(RETRY_DEFAULT)).await;
    Ok(())
}

/// Shows a build's log until the build ends; returns an error if it failed.
pub async fn follow_build(client: &Client, id: &BuildId, progress: &Progress) -> Result<()> {
    let mut logs = client.follow_build(id).await?;
    while let Some(line) = logs.next().await? {
        progress.step(line);
    }
    let build = client.get_build(id).await?;
    if build.status == BuildStatus::Failed {
        let why = build.error.unwrap_or_else(|| "no reason was reported".to_owned());
        let failure = Failure::new(format!("cannot build template `{}`: {why}", build.name));
        return Err(failure.hint("run `pandastack doctor` on the host to check its requirements").into());
    }
    Ok(())
}
