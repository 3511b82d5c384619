//! `clippy.toml` of crates that promise to do no I/O and to have no clock.
//!
//! Clippy reads one such file, the nearest: a crate's own replaces the workspace's. So theirs have all of the
//! workspace's entries, and then their own, which are the same in each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

/// The workspace's.
const WORKSPACE: &str = "clippy.toml";
/// Crates without I/O and without a clock.
const PURE: [&str; 4] =
    ["pandastack-types", "pandastack-schedule", "pandastack-detect", "pandastack-dockerfile"];

/// Lists pure crates whose file is not the workspace's plus their common additions.
pub fn problems() -> Result<Vec<String>> {
    let workspace = super::read(Path::new(WORKSPACE))?;
    let read = |name: &&str| {
        let path = Path::new("crates").join(name).join(WORKSPACE);
        let text = super::read(&path)?;
        Ok((path, text))
    };
    let own: Vec<(PathBuf, String)> = PURE.iter().map(read).collect::<Result<_>>()?;
    lint_problems(&workspace, &own)
}

fn lint_problems(workspace: &str, own: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let workspace: Table = toml::from_str(workspace).context("parse clippy.toml")?;
    let mut problems = Vec::new();
    for (path, text) in own {
        let table: Table = toml::from_str(text).with_context(|| format!("parse {}", path.display()))?;
        for (key, value) in &workspace {
            for entry in missing(value, table.get(key)) {
                problems.push(format!("{}: {key} lacks the workspace's {entry}", path.display()));
            }
        }
        if let Some((first, _)) = own.first().filter(|(_, first)| first != text) {
            problems.push(format!("{}: differs from {}", path.display(), first.display()));
        }
    }
    Ok(problems)
}

/// Parts of a workspace setting that a crate's own lacks: elements of a list, or the value.
fn missing(value: &Value, own: Option<&Value>) -> Vec<String> {
    match (value, own) {
        (Value::Array(entries), Some(Value::Array(own))) => {
            let entries = entries.iter().filter(|entry| !own.contains(entry));
            entries.map(|entry| entry.get("path").unwrap_or(entry).to_string()).collect()
        }
        (value, Some(own)) if value == own => Vec::new(),
        (value, _) => vec![value.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "allow = true\nmethods = [{ path = \"a\" }, { path = \"b\" }]\n";

    #[track_caller]
    fn check(own: &[&str], expect: &[&str]) {
        let files = own.iter().zip('a'..).map(|(text, name)| (name.to_string().into(), (*text).to_owned()));
        let problems = lint_problems(WORKSPACE, &files.collect::<Vec<_>>()).unwrap();
        assert_eq!(problems, expect);
    }

    #[test]
    fn a_crate_lint_config_contains_the_workspace_entries() {
        let whole = "allow = true\nmethods = [{ path = \"a\" }, { path = \"b\" }, { path = \"c\" }]\n";
        let lacking = "allow = true\nmethods = [{ path = \"b\" }, { path = \"c\" }]\n";
        check(&[whole, whole], &[]);
        check(&[lacking], &["a: methods lacks the workspace's \"a\""]);
        check(&[whole, &format!("{whole}\n")], &["b: differs from a"]);
        check(
            &["allow = false\n"],
            &[
                "a: allow lacks the workspace's true",
                "a: methods lacks the workspace's [{ path = \"a\" }, { path = \"b\" }]",
            ],
        );
    }
}
