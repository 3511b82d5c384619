//! Packages that are directories of the source itself.
//!
//! Most installers copy them. A restored copy is of an earlier source, and installers keep existing copies,
//! so an app with such a package is installed again at every build. Better one too many than one too few.

use crate::view::View;

/// Returns whether pyproject.toml or Pipfile has such a package. An unreadable file is assumed to
/// name one.
pub(crate) fn is_in_python(view: &View) -> bool {
    let lists = ["pyproject.toml", "Pipfile"];
    lists.iter().filter_map(|list| view.text(list)).any(|text| {
        let document = toml::from_str::<toml::Table>(text);
        text.contains("file:") || document.map_or(true, |document| names_copied(&document))
    })
}

/// Returns whether a version in package.json is a directory of the source that is copied rather
/// than linked.
pub(crate) fn is_node(version: &serde_json::Value) -> bool {
    let begins = ["file:", "./", "../", "~/", "/"];
    version.as_str().is_some_and(|version| begins.iter().any(|begin| version.starts_with(begin)))
}

/// Returns whether a table of packages, at any depth, has a copied package.
fn names_copied(table: &toml::Table) -> bool {
    table.iter().any(|(key, value)| {
        let Some(inner) = value.as_table() else { return false };
        let lists_packages = ["dependencies", "sources", "packages"].iter().any(|end| key.ends_with(end));
        (lists_packages && inner.values().any(is_copied)) || names_copied(inner)
    })
}

/// Returns whether a package, or one of its alternatives, is a path that is copied; or a workspace
/// member that is declared as not linked.
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
