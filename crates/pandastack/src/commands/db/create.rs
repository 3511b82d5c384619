//! Creates a database; the first one on a host waits until PostgreSQL is set up there.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{CreateDatabase, Database};

use crate::commands::create::{ATTEMPTS_MAX, wait_before_retry};
use crate::commands::wait::or_interrupt;
use crate::progress::Progress;

/// Creates a database. A rejected request creates nothing, so it can be retried.
pub async fn create(client: &Client, request: &CreateDatabase) -> Result<Database> {
    let background = "if the database was already created, `pandastack db list` shows it";
    or_interrupt(background, create_with_retries(client, request)).await
}

async fn create_with_retries(client: &Client, request: &CreateDatabase) -> Result<Database> {
    let progress = Progress::start("Creating database");
    let mut attempt = 1;
    loop {
        let error = match client.create_database(request).await {
            Ok(database) => return Ok(database),
            Err(error) => error,
        };
        if attempt == ATTEMPTS_MAX {
            return Err(error.into());
        }
        attempt += 1;
        wait_before_retry(client, error, &progress).await?;
    }
}
