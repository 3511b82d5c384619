//! Finds a sandbox by its id, its name or a unique id prefix.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::Sandbox;
use pandastack_types::{ID_CHARS, SandboxId};

use crate::failure::Failure;

const LIST_HINT: &str = "run `pandastack sandbox list` to see all IDs";

/// Resolves a sandbox id, a name or a unique id prefix.
pub async fn resolve(client: &Client, text: &str) -> Result<SandboxId> {
    let id: SandboxId = text.parse().map_err(|error| Failure::new(format!("{error}")).hint(LIST_HINT))?;
    if text.len() == ID_CHARS {
        return Ok(id);
    }
    choose(text, &client.list_sandboxes().await?)
}

fn choose(text: &str, sandboxes: &[Sandbox]) -> Result<SandboxId> {
    let named = |sandbox: &&Sandbox| sandbox.name.as_deref() == Some(text) || sandbox.id.as_str() == text;
    if let Some(sandbox) = sandboxes.iter().find(named) {
        return Ok(sandbox.id.clone());
    }
    let mut matching = sandboxes.iter().map(|sandbox| &sandbox.id).filter(|id| id.as_str().starts_with(text));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only.clone()),
        (Some(first), Some(second)) => {
            let failure = Failure::new(format!("sandbox ID `{text}` is ambiguous: `{first}` and `{second}`"));
            Err(failure.hint("use more characters of the ID").into())
        }
        (None, _) => Err(Failure::not_found("sandbox", text).hint(LIST_HINT).into()),
    }
}
