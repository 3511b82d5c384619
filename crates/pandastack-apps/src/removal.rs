//! Deleting an app: first it is marked, so that nothing finds it any more; then its machines and snapshots go, then its
//! rows. Its previews go with it.
//!
//! Must hold: a marked app is removed even if this process ends first: [`sweep`] finds it again,
//! and previews whose app is gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pandastack_store::StoreError;
use pandastack_store::apps::record::{AppRecord, AppSpec};
use pandastack_types::{AppId, Error, ErrorCode, Result, WorkspaceId, chain};
use tokio::sync::broadcast::error::RecvError;

use crate::activity::Stop;
use crate::change::change;
use crate::prune;
use crate::state::Apps;

/// Longest wait for an app that is being removed; its machines end within seconds where their hosts answer.
const GONE_WAIT: Duration = Duration::from_secs(300);

/// Deletes an app with its previews; finishes even if the caller goes away.
pub(crate) async fn run(apps: &Arc<Apps>, id: AppId) -> Result<()> {
    mark(apps, &id).await?;
    let owner = Arc::clone(apps);
    apps.background.owned(async move { finish(&owner, &id).await }).await
}

impl Apps {
    /// Deletes every app of a workspace with its previews.
    pub async fn delete_all(self: &Arc<Self>, workspace: &WorkspaceId) -> Result<()> {
        for app in self.store.apps(Some(workspace)).await? {
            match run(self, app.id).await {
                // A preview goes with its app.
                Err(error) if error.code != ErrorCode::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks queued deployments again soon.
    pub fn wake_deployer(&self) {
        self.activity.work.notify_one();
    }
}

/// Marks the app as deleted: nothing finds it any more.
pub(crate) async fn mark(apps: &Apps, id: &AppId) -> Result<()> {
    mark_if(apps, id, |_| true).await.map(drop)
}

/// The same, unless its settings speak against it at the moment of writing. Returns whether it is marked.
pub(crate) async fn mark_if(apps: &Apps, id: &AppId, may: impl Fn(&AppSpec) -> bool) -> Result<bool> {
    let changed = change(apps, id, |record| record.spec.deleting |= may(&record.spec)).await?;
    apps.names.notify_all();
    Ok(changed.spec.deleting)
}

/// Removes a marked app in the background.
pub(crate) fn begin(apps: &Arc<Apps>, id: AppId) {
    let owner = Arc::clone(apps);
    apps.background.tasks.spawn(async move {
        if let Err(error) = finish(&owner, &id).await {
            tracing::warn!(app = %id, error = %chain(&error), "cannot delete an app yet; retrying later");
        }
    });
}

/// Waits until an app that is marked is gone.
pub(crate) async fn wait(apps: &Apps, app: &AppRecord) -> Result<()> {
    let mut changes = apps.names.subscribe();
    let gone = async {
        loop {
            if let Err(StoreError::NotFound { .. }) = apps.store.app(None, app.id.as_str()).await {
                return Ok(());
            }
            // Its end is a change of names. One that was missed is found by looking again.
            if let Err(RecvError::Closed) = changes.recv().await {
                std::future::pending::<()>().await;
            }
        }
    };
    let late = || {
        let message = format!("`{}` is still being deleted; send the delivery again in a moment", app.name);
        Error::new(ErrorCode::Unavailable, message)
    };
    tokio::select! {
        gone = gone => gone,
        () = tokio::time::sleep(GONE_WAIT) => Err(late()),
        () = apps.background.shutdown.cancelled() => Err(late()),
    }
}

async fn finish(apps: &Arc<Apps>, id: &AppId) -> Result<()> {
    for preview in apps.store.previews(id).await? {
        mark(apps, &preview.id).await?;
        finish_one(apps, &preview.id).await?;
    }
    finish_one(apps, id).await
}

async fn finish_one(apps: &Arc<Apps>, id: &AppId) -> Result<()> {
    // Two at once would stumble over each other's machines.
    let Some(_removing) = apps.activity.begin_removal(id) else { return Ok(()) };
    match apps.activity.running(id) {
        // Its own end tidies up, and with that deletes the app.
        Some(running) if apps.activity.stop(&running, Stop::Canceled) => Ok(()),
        _ => prune::app(apps, id).await,
    }
}

/// Removes marked apps, and previews without an app.
pub(crate) async fn sweep(apps: &Arc<Apps>) -> Result<()> {
    let all = apps.store.apps(None).await?;
    let there: HashSet<_> = all.iter().filter(|one| !one.spec.deleting).map(|one| one.id.clone()).collect();
    for one in &all {
        let orphan = one.preview_of.as_ref().is_some_and(|of| !there.contains(of));
        if orphan && !one.spec.deleting {
            mark(apps, &one.id).await?;
        }
        if (orphan || one.spec.deleting) && apps.activity.running(&one.id).is_none() {
            begin(apps, one.id.clone());
        }
    }
    Ok(())
}
