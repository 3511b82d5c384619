//! Deleting an app: first it is marked, so that nothing finds it any more; then its machines and snapshots go, then its
//! rows. Its previews go with it.
//!
//! Must hold: what is marked is removed, also if this process ends meanwhile: [`sweep`] finds it again, and previews whose
//! app is gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::{AppId, Error, ErrorCode, Result};
use tokio::sync::broadcast::error::RecvError;

use super::deploy::change;
use super::record::{AppRecord, AppSpec};
use super::{Stop, tidy};
use crate::app::App;
use crate::store::StoreError;

/// Longest wait for an app that is being removed; its machines end within seconds where their hosts answer.
const GONE_WAIT: Duration = Duration::from_secs(300);

/// Deletes an app with its previews; finishes even if the caller goes away.
pub(super) async fn run(app: &Arc<App>, id: AppId) -> Result<()> {
    mark(app, &id).await?;
    let owner = Arc::clone(app);
    app.owned(async move { finish(&owner, &id).await }).await
}

/// From here on nothing finds it.
pub(super) async fn mark(app: &App, id: &AppId) -> Result<()> {
    mark_if(app, id, |_| true).await.map(drop)
}

/// The same, unless its settings speak against it at the moment of writing. Answers whether it is marked.
pub(super) async fn mark_if(app: &App, id: &AppId, may: impl Fn(&AppSpec) -> bool) -> Result<bool> {
    let changed = change(app, id, |record| record.spec.deleting |= may(&record.spec)).await?;
    app.names_changed();
    Ok(changed.spec.deleting)
}

/// Removes what is marked, in the background.
pub(super) fn begin(app: &Arc<App>, id: AppId) {
    let owner = Arc::clone(app);
    app.tasks.spawn(async move {
        if let Err(error) = finish(&owner, &id).await {
            tracing::warn!(app = %id, %error, cause = error.causes(), "an app is deleted later");
        }
    });
}

/// Waits until an app that is marked is gone.
pub(super) async fn wait(app: &App, of: &AppRecord) -> Result<()> {
    let mut changes = app.names.subscribe();
    let gone = async {
        loop {
            if let Err(StoreError::NotFound { .. }) = app.store.app(None, of.id.as_str()).await {
                return Ok(());
            }
            // Its end is a change of names. One that was missed is found by looking again.
            if let Err(RecvError::Closed) = changes.recv().await {
                std::future::pending::<()>().await;
            }
        }
    };
    let late = || {
        let message = format!("`{}` is still being deleted; send the delivery again in a moment", of.name);
        Error::new(ErrorCode::Unavailable, message)
    };
    tokio::select! {
        gone = gone => gone,
        () = tokio::time::sleep(GONE_WAIT) => Err(late()),
        () = app.shutdown.cancelled() => Err(late()),
    }
}

async fn finish(app: &Arc<App>, id: &AppId) -> Result<()> {
    for preview in app.store.previews(id).await? {
        mark(app, &preview.id).await?;
        finish_one(app, &preview.id).await?;
    }
    finish_one(app, id).await
}

async fn finish_one(app: &Arc<App>, id: &AppId) -> Result<()> {
    // Two at once would stumble over each other's machines.
    let Some(_removing) = app.apps.removing(id) else { return Ok(()) };
    match app.apps.running(id) {
        // Its own end tidies up, and with that deletes the app.
        Some(running) if app.apps.stop(&running, Stop::Canceled) => Ok(()),
        _ => tidy::app(app, id).await,
    }
}

/// Removes what was marked and is still there, and previews without an app.
pub(super) async fn sweep(app: &Arc<App>) -> Result<()> {
    let all = app.store.apps(None).await?;
    let there: HashSet<_> = all.iter().filter(|one| !one.spec.deleting).map(|one| one.id.clone()).collect();
    for one in &all {
        let orphan = one.preview_of.as_ref().is_some_and(|of| !there.contains(of));
        if orphan && !one.spec.deleting {
            mark(app, &one.id).await?;
        }
        if (orphan || one.spec.deleting) && app.apps.running(&one.id).is_none() {
            begin(app, one.id.clone());
        }
    }
    Ok(())
}
