//! Packages that are directories of the source itself.
//!
//! Most installers copy them. A copy that was restored is of an earlier source, and installers take one that
//! is there for good, so whoever names such a package is installed anew at every build. Better one too many
//! than one too few.

use crate::view::View;

/// Whether pyproject.toml or Pipfile has such a package. What cannot be read may name anything.
pub(crate) fn is_in_python(view: &View) -> bool {
    let lists = ["pyproject.toml", "Pipfile"];
    lists.iter().filter_map(|list| view.text(list)).any(|text| {
        let document = toml::from_str::<toml::Table>(text);
        text.contains("file:") || document.map_or(true, |document| names_copied(&document))
    })
}

/// Whether a version in package.json is such a package, and is no link to it.
pub(crate) fn is_node(version: &serde_json::Value) -> bool {
    let begins = ["file:", "./", "../", "~/", "/"];
    version.as_str().is_some_and(|version| begins.iter().any(|begin| version.starts_with(begin)))
}

/// Whether a table of packages, at any depth, has one that is copied.
fn names_copied(table: &toml::Table) -> bool {
    table.iter().any(|(key, value)| {
        let Some(inner) = value.as_table() else { return false };
        let lists_packages = ["dependencies", "sources", "packages"].iter().any(|end| key.ends_with(end));
        (lists_packages && inner.values().any(is_copied)) || names_copied(inner)
    })
}

/// Whether a package, or one of several ways to it, is a path and no link; or a member of the workspace that
/// is said to be no link.
fn is_copied(package: &toml::Value) -> bool {
    if let Some(ways) = package.as_array() {
        return ways.iter().any(is_copied);
    }
    let is_said = |key: &str| package.get(key).and_then(toml::Value::as_bool);
    let links = is_said("editable").or_else(|| is_said("develop"));
    match package.get("path") {
        Some(_) => links != Some(true),
        None => is_said("editable") == Some(false),
    }
}
