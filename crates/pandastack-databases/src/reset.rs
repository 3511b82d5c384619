//! New passwords for the users of databases.
//!
//! ```text
//!   record: new count, reset pending -> the server gets the new password -> record: reset done
//! ```
//!
//! Must hold: the password that the platform shows is eventually the server's. An interrupted reset
//! is finished when the database is brought back, or by the next check of `revive`. A password that
//! a tenant chose with `ALTER ROLE` is theirs, and stays until they ask for another. The server
//! itself records the last reset that it applied, next to the password: so a server restored from a
//! log that ends before a reset is recognized, even if the tenant changed the role.

use std::sync::Arc;

use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{DatabaseId, Result, SandboxId};

use crate::service::ManagedDatabases;
use crate::{machines, server};

/// Sets a new password for the user of a database; the old one and the old broker token stop working.
pub(super) async fn reset_credentials(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(databases);
    databases
        .background
        .owned(async move {
            let databases = for_task;
            let _marked = machines::take_mark(&databases, &record.id)?;
            let mut record = databases.store.database(Some(&record.workspace), &record.id).await?;
            machines::ready(&record)?;
            record.spec.revision += 1;
            record.spec.reset_pending = true;
            record.spec.secret_generation = databases.link.current_generation();
            databases.store.update_database(&record).await?;
            finish(&databases, record).await
        })
        .await
}

/// Applies the recorded password to the server of a database. Safe to repeat; wakes it.
pub(super) async fn finish(
    databases: &Arc<ManagedDatabases>,
    mut record: DatabaseRecord,
) -> Result<DatabaseRecord> {
    let sandbox = machines::ready(&record)?.clone();
    server::renew_password(databases, &record, &sandbox).await?;
    record.spec.reset_pending = false;
    databases.store.update_database(&record).await?;
    Ok(record)
}

/// Applies a password reset to a restored server whose log did not contain it.
pub(super) async fn apply_missed_reset(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<()> {
    if server::recorded_revision(databases, record, sandbox).await? < record.spec.revision {
        server::renew_password(databases, record, sandbox).await?;
    }
    Ok(())
}

/// Records the last reset in a running server from before servers recorded any. Without that, a
/// password that its tenant chose since would not outlast a failover.
pub(super) async fn record_revision(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    sandbox: &SandboxId,
) -> Result<()> {
    let record = databases.store.database(None, id).await?;
    if record.spec.revision == 0 || record.spec.reset_pending {
        return Ok(());
    }
    server::record_revision(databases, &record, sandbox).await
}
