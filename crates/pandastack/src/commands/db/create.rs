//! Creating with patience: the first database of a host waits until PostgreSQL is prepared there.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{CreateDatabase, Database};

use crate::commands::create::{ATTEMPTS_MAX, wait_before_retry};
use crate::progress::Progress;

/// Creates a database. A refusal leaves nothing behind, so trying again makes nothing twice.
pub async fn create(client: &Client, request: &CreateDatabase) -> Result<Database> {
    let progress = Progress::start("Creating a database");
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
