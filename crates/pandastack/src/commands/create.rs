//! Creating with patience: a template that is not baked yet is built first, with its progress shown.

use std::time::Duration;

use anyhow::Result;
use pandastack_client::{Client, ClientError};
use pandastack_types::api::{BuildStatus, CreateSandbox, Sandbox};
use pandastack_types::{BuildId, ErrorCode};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::progress::Progress;

/// How often a create is repeated when the server asks to come back. Bakes are waited for, so a second refusal
/// already is unusual.
pub const ATTEMPTS_MAX: u32 = 8;
/// Wait between attempts when the server names none.
const RETRY_DEFAULT: Duration = Duration::from_secs(5);

/// Creates a sandbox, waiting for its template's bake.
pub async fn create(client: &Client, request: &CreateSandbox) -> Result<Sandbox> {
    let never = CancellationToken::new();
    let made = create_unless(client, request, &never).await?;
    made.ok_or_else(|| Failure::new("the create was given up").into())
}

/// The same, until `stop` is cancelled: then `None`, and nothing was made.
pub async fn create_unless(
    client: &Client,
    request: &CreateSandbox,
    stop: &CancellationToken,
) -> Result<Option<Sandbox>> {
    let key = uuid::Uuid::new_v4().to_string();
    let progress = Progress::start("Creating a sandbox");
    let mut attempt = 1;
    loop {
        // A call under way is not given up, because it may make something.
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

/// Waits as the refusal says, or hands it back when trying again would not help.
pub async fn wait_before_retry(client: &Client, error: ClientError, progress: &Progress) -> Result<()> {
    let ClientError::Refused { build_id, retry_after, message, .. } = &error else {
        return Err(error.into());
    };
    if error.is_code(ErrorCode::TemplateBaking) {
        if let Some(id) = build_id.as_deref().and_then(|id| id.parse::<BuildId>().ok()) {
            return follow_build(client, &id, progress).await;
        }
    } else if !error.is_code(ErrorCode::NoCapacity) && !error.is_code(ErrorCode::Unavailable) {
        return Err(error.into());
    }
    progress.step(message.clone());
    tokio::time::sleep(retry_after.unwrap_or(RETRY_DEFAULT)).await;
    Ok(())
}

/// Shows a build's log until it ends; a failed one is an error.
pub async fn follow_build(client: &Client, id: &BuildId, progress: &Progress) -> Result<()> {
    let mut logs = client.follow_build(id).await?;
    while let Some(line) = logs.next().await? {
        progress.step(line);
    }
    let build = client.get_build(id).await?;
    if build.status == BuildStatus::Failed {
        let why = build.error.unwrap_or_else(|| "the build does not say why".to_owned());
        let failure = Failure::new(format!("building the template {} failed: {why}", build.name));
        return Err(failure.hint("`pandastack doctor` checks what builds need").into());
    }
    Ok(())
}
