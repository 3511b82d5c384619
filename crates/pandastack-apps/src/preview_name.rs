//! Names of previews.

use pandastack_store::apps::record::AppRecord;

/// Beginning of a preview's name; no app may have one like it.
const NAME_START: &str = "pr-";

/// Name of a preview.
pub(crate) fn name_of(app: &AppRecord, number: u32) -> String {
    format!("{NAME_START}{number}-{}", app.name)
}

/// Returns whether a name could belong to a preview.
pub(crate) fn is_name(name: &str) -> bool {
    let number = name.strip_prefix(NAME_START).and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preview_names_are_reserved() {
        for name in ["pr-1-shop", "pr-12-a-b"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["pr-shop", "pr-1", "pr--shop", "pr-1a-shop", "shop"] {
            assert!(!is_name(name), "{name}");
        }
    }
}
