//! Names of sandboxes, snapshots and databases.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;

use super::{SqlStore, Write};
use crate::names::{NameStore, Named, choose};
use crate::{Result, StoreError};

/// Rows needed for a result: the exact match comes first, and two prefix matches are ambiguous.
macro_rules! by_text {
    ($table:literal, $and:literal) => {
        concat!(
            "SELECT id, name FROM ",
            $table,
            " WHERE workspace_id = $1 AND (name = $2 OR substr(id, 1, length($2)) = $2)",
            $and,
            " ORDER BY CASE WHEN id = $2 THEN 0 WHEN name = $2 THEN 1 ELSE 2 END, id LIMIT 3"
        )
    };
}

#[async_trait]
impl NameStore for SqlStore {
    async fn find_named(&self, workspace: &WorkspaceId, kind: Named, text: &str) -> Result<Option<String>> {
        let query = match kind {
            // Users reach machines of services by their whole ids only, where that is checked.
            Named::Sandbox => by_text!("sandboxes", " AND owner IS NULL"),
            Named::Snapshot => by_text!("snapshots", ""),
            Named::Database => by_text!("databases", ""),
        };
        let found: Vec<(String, Option<String>)> =
            sqlx::query_as(query).bind(workspace.as_str()).bind(text).fetch_all(&self.readers).await?;
        choose(kind.what(), text, found)
    }
}

/// Refuses a name that another one of the workspace has. The workspace is locked.
pub(super) async fn check_free(
    write: &mut Write,
    kind: Named,
    workspace: &WorkspaceId,
    name: Option<&str>,
) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let query = match kind {
        Named::Sandbox => "SELECT id FROM sandboxes WHERE workspace_id = $1 AND name = $2",
        Named::Snapshot => "SELECT id FROM snapshots WHERE workspace_id = $1 AND name = $2",
        Named::Database => "SELECT id FROM databases WHERE workspace_id = $1 AND name = $2",
    };
    let has: Option<String> =
        sqlx::query_scalar(query).bind(workspace.as_str()).bind(name).fetch_optional(write.conn()).await?;
    match has {
        None => Ok(()),
        Some(id) => Err(StoreError::Held(format!(
            "{what} `{id}` already has the name `{name}`; choose another name",
            what = kind.what()
        ))),
    }
}
