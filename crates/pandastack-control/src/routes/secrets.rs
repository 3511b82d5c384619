//! The join secret of this server: its state, and switching to another generation.
//!
//! Requests are signed with the secret itself, so only a process that can read its file can send
//! them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use pandastack_rest::ApiResult;

use pandastack_types::link::LinkKey;
use pandastack_types::secret_ring::{SecretRing, SecretStatus};
use pandastack_types::{Error, ErrorCode, Result};

use crate::link_caller::LinkCaller;
use crate::services::Services;

/// The generations, and the generation that the rows are sealed with.
pub(crate) async fn status(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Json<SecretStatus>> {
    LinkCaller::of(request.extensions())?.with_secret()?;
    Ok(Json(current_status(&services, 0).await?))
}

/// Reloads the file, and seals all rows with its current generation. Safe to repeat.
pub(crate) async fn reload(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Json<SecretStatus>> {
    LinkCaller::of(request.extensions())?.with_secret()?;
    let owned = Arc::clone(&services);
    // Continues if the client disconnects.
    Ok(Json(services.background.owned(async move { use_file(&owned).await }).await?))
}

async fn use_file(services: &Services) -> Result<SecretStatus> {
    if let Some(path) = &services.secret_file {
        let unusable = |error: &dyn std::fmt::Display| {
            Error::new(ErrorCode::Conflict, format!("cannot use the join secret {}: {error}", path.display()))
        };
        let text = tokio::fs::read_to_string(path).await.map_err(|error| unusable(&error))?;
        let ring = SecretRing::parse(&text).map_err(|error| unusable(&error))?;
        let found = LinkKey::from(ring.clone()).fingerprints();
        if !found.starts_with(&services.link.fingerprints()) {
            return Err(unusable(&"it lacks a generation that is in use; restore the newest copy"));
        }
        let kept = services.store.secret_fingerprint(&services.link.fingerprint()).await?;
        if !found.contains(&kept) {
            return Err(unusable(&"it lacks the generation of the database; restore the newest copy"));
        }
        services.link.replace(ring);
    }
    let ours = services.link.fingerprint();
    services.store.replace_secret_fingerprint(&ours).await?;
    let done = services.store.seal_rows().await?;
    let generation = services.link.current_generation();
    tracing::info!(generation, rows = done.rows, sealed = done.sealed, "the join secret was read again");
    current_status(services, done.sealed).await
}

async fn current_status(services: &Services, rows_sealed: u64) -> Result<SecretStatus> {
    Ok(SecretStatus {
        generations: services.link.generations(),
        rows_sealed_with: services.store.sealed_with().await?,
        rows_sealed,
    })
}
