//! What a control that was killed left behind: nothing stays half made or half deleted.
//!
//! A database that was being made is given up, its machine deleted: whoever asked for it got no answer. One that was being
//! deleted is deleted. Both are safe to repeat.

use std::sync::Arc;

use super::{backups, mark, ops, owner};
use crate::app::App;
use crate::error::ApiResult;
use crate::store::databases::{DatabaseRecord, DatabaseState};
use crate::volumes::owned;

/// Why a database is not there though somebody asked for it.
const STOPPED: &str = "the server stopped while it was being made; delete it and make another";

/// Finishes what was under way. Called once at the start, before anything new begins.
pub(crate) async fn recover(app: Arc<App>) {
    if let Err(error) = recover_all(&app).await {
        tracing::error!(%error, cause = error.causes(), "databases that were being made or deleted are left as they are");
    }
}

async fn recover_all(app: &Arc<App>) -> ApiResult<()> {
    for record in app.store.databases_in(DatabaseState::Creating).await? {
        // Somebody may have been faster than this: what is marked is under way now.
        let Some(_marked) = app.under_way.mark(&mark(&record.id)) else { continue };
        ops::remove_machines(app, &record.id).await?;
        owned::delete_all(app, &record.workspace, &owner(&record.id)).await?;
        let mut failed = DatabaseRecord { state: DatabaseState::Failed, ..record };
        failed.spec.failure = Some(STOPPED.to_owned());
        app.store.update_database(&failed).await?;
        tracing::info!(database = %failed.id, "a database that was being made is given up");
    }
    for record in app.store.databases_in(DatabaseState::Ready).await? {
        backups::remove_left(app, &record.id).await?;
    }
    for record in app.store.databases_in(DatabaseState::Deleting).await? {
        let Some(_marked) = app.under_way.mark(&mark(&record.id)) else { continue };
        ops::remove(app, &record).await?;
    }
    Ok(())
}
