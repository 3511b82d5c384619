//! Finds a database by its id, its name, a unique id prefix or its label.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::DatabaseId;
use pandastack_types::api::Database;

use crate::failure::Failure;

/// Resolves a database id, a name, a unique id prefix or a label.
pub async fn resolve(client: &Client, text: &str) -> Result<DatabaseId> {
    let found = client.list_databases().await?;
    let exact = |database: &&Database| database.id.as_str() == text || database.name.as_deref() == Some(text);
    if let Some(exact) = found.iter().find(exact) {
        return Ok(exact.id.clone());
    }
    let matches = |database: &&Database| {
        database.id.as_str().starts_with(text) || database.label.as_deref() == Some(text)
    };
    let matching: Vec<_> = found.iter().filter(matches).collect();
    match matching.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => {
            let failure = Failure::not_found("database", text);
            Err(failure.hint("run `pandastack db list` to see all databases").into())
        }
        several => {
            let failure =
                Failure::new(format!("database `{text}` is ambiguous: {} databases match", several.len()));
            Err(failure.hint("use the full ID; run `pandastack db list` to see all IDs").into())
        }
    }
}
