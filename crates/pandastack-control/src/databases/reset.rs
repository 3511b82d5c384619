//! New passwords for the users of databases.
//!
//! ```text
//!   the record has the new count, and that its server must be told -> the server is told -> the record: it was
//! ```
//!
//! Must hold: the password that the platform shows is the one that it gave the server, in the end. What is cut off half way is finished
//! by whoever brings the database back, or by the next look of `revive`. A password that a tenant chose with `ALTER ROLE` is theirs,
//! and stays until they ask for another.

use std::sync::Arc;

use pandastack_types::SandboxId;

use super::{ops, server};
use crate::app::App;
use crate::error::ApiResult;
use crate::store::databases::DatabaseRecord;

/// Resets that a restored server may have missed: those of the seconds that the archive is behind, or of a longer failure of it.
const MISSED_MAX: u64 = 3;

/// Gives the user of a database a new password; the old one and the old broker token work no more.
pub(super) async fn reset_credentials(app: &Arc<App>, record: DatabaseRecord) -> ApiResult<DatabaseRecord> {
    let for_task = Arc::clone(app);
    app.owned(async move {
        let app = for_task;
        let _marked = ops::take_mark(&app, &record.id)?;
        let mut record = app.store.database(Some(&record.workspace), &record.id).await?;
        ops::ready(&record)?;
        record.spec.revision += 1;
        record.spec.reset_pending = true;
        app.store.update_database(&record).await?;
        finish(&app, record).await
    })
    .await
}

/// Tells the server of a database what its record says already. Safe to repeat; wakes it.
pub(super) async fn finish(app: &Arc<App>, mut record: DatabaseRecord) -> ApiResult<DatabaseRecord> {
    let sandbox = ops::ready(&record)?.clone();
    server::renew_password(app, &record, &sandbox).await?;
    record.spec.reset_pending = false;
    app.store.update_database(&record).await?;
    Ok(record)
}

/// Tells a server that was restored of a reset that its log did not have: it still takes a password from before.
pub(super) async fn catch_up(app: &Arc<App>, record: &DatabaseRecord, sandbox: &SandboxId) -> ApiResult<()> {
    for older in earlier(record) {
        if server::takes_password(app, &older, sandbox).await? {
            return server::renew_password(app, record, sandbox).await;
        }
    }
    Ok(())
}

/// The record as it was before each of the last resets, newest first.
fn earlier(record: &DatabaseRecord) -> impl Iterator<Item = DatabaseRecord> {
    let revision = record.spec.revision;
    (revision.saturating_sub(MISSED_MAX)..revision).rev().map(|revision| {
        let mut older = record.clone();
        older.spec.revision = revision;
        older
    })
}

#[cfg(test)]
mod tests {
    use pandastack_types::WorkspaceId;

    use super::*;
    use crate::app::now;
    use crate::store::databases::{DatabaseSpecRecord, DatabaseState};

    #[test]
    fn the_last_resets_are_undone_one_by_one() {
        for (revision, expect) in [(0, vec![]), (1, vec![0]), (2, vec![1, 0]), (9, vec![8, 7, 6])] {
            let record = DatabaseRecord {
                id: "a".parse().unwrap(),
                workspace: WorkspaceId::default_workspace(),
                state: DatabaseState::Ready,
                sandbox: None,
                created_at: now(),
                drill: None,
                spec: DatabaseSpecRecord { revision, ..Default::default() },
            };
            let found: Vec<u64> = earlier(&record).map(|older| older.spec.revision).collect();
            assert_eq!(found, expect, "{revision}");
        }
    }
}
