//! Finds a sandbox by its id or a unique prefix.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;

use crate::failure::Failure;

/// Length of a full random id: shorter texts are looked up as a prefix.
const FULL_ID_CHARS: usize = 36;
const LIST_HINT: &str = "run `pandastack sandbox list` to see all IDs";

/// Resolves a full sandbox id or a unique prefix.
pub async fn resolve(client: &Client, text: &str) -> Result<SandboxId> {
    let id: SandboxId = text.parse().map_err(|error| Failure::new(format!("{error}")).hint(LIST_HINT))?;
    if text.len() >= FULL_ID_CHARS {
        return Ok(id);
    }
    let sandboxes = client.list_sandboxes().await?;
    let mut matching =
        sandboxes.into_iter().map(|sandbox| sandbox.id).filter(|id| id.as_str().starts_with(text));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(Failure::new(format!("sandbox ID `{text}` is ambiguous"))
            .hint("use more characters of the ID")
            .into()),
        (None, _) => Err(Failure::new(format!("sandbox `{text}` not found")).hint(LIST_HINT).into()),
    }
}
