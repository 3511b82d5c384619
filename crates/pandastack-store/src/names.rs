//! Finding things by a name or the beginning of an id.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;

use crate::{Result, StoreError};

/// Fewest characters of an id that are looked up as its beginning: a mistyped name must not reach something
/// else.
pub const ID_PREFIX_CHARS_MIN: usize = 4;

/// Kinds of things that users name. Volumes have names of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// A sandbox, unless it belongs to a service.
    Sandbox,
    /// A snapshot.
    Snapshot,
    /// A database.
    Database,
}

impl Named {
    /// Name of the kind.
    pub fn what(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Snapshot => "snapshot",
            Self::Database => "database",
        }
    }
}

/// Names.
#[async_trait]
pub trait NameStore: Send + Sync {
    /// The id of the resource with this id or name, else of the only one whose id begins with the
    /// text. Refuses an ambiguous prefix.
    async fn find_named(&self, workspace: &WorkspaceId, kind: Named, text: &str) -> Result<Option<String>>;
}

/// Chooses the row that a text names, among rows of id and name. Three rows are enough to decide.
pub(crate) fn choose(kind: &str, text: &str, found: Vec<(String, Option<String>)>) -> Result<Option<String>> {
    let exact = |(id, name): &&(String, Option<String>)| id == text || name.as_deref() == Some(text);
    if let Some((id, _)) = found.iter().find(exact) {
        return Ok(Some(id.clone()));
    }
    match found.as_slice() {
        [] => Ok(None),
        [(id, _)] => Ok((text.len() >= ID_PREFIX_CHARS_MIN).then(|| id.clone())),
        [(first, _), (second, _), ..] => Err(StoreError::Held(format!(
            "the IDs of several {kind}s begin with `{text}`, such as `{first}` and `{second}`; use more of \
             the ID"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_to_ids_names_or_unique_prefixes() {
        let row = |id: &str, name: Option<&str>| (id.to_owned(), name.map(str::to_owned));
        let rows = || vec![row("abcd-1", None), row("abcd-2", Some("web")), row("abcd-11", None)];
        let chosen = |text: &str, rows| choose("sandbox", text, rows).unwrap();
        assert_eq!(chosen("abcd-1", rows()).as_deref(), Some("abcd-1"), "a whole id is not a beginning");
        assert_eq!(chosen("web", rows()).as_deref(), Some("abcd-2"));
        assert_eq!(chosen("abcd-2", vec![row("abcd-2", None)]).as_deref(), Some("abcd-2"));
        assert_eq!(chosen("abcd", vec![row("abcd-2", None)]).as_deref(), Some("abcd-2"));
        assert_eq!(chosen("abc", vec![row("abcd-2", None)]), None, "too short");
        assert_eq!(chosen("none", Vec::new()), None);
        let several = choose("sandbox", "abcd", rows()).unwrap_err().to_string();
        assert!(several.contains("abcd-1") && several.contains("more of the ID"), "{several}");
    }
}
