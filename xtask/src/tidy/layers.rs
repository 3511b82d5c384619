//! The border between services and the sandbox core.
//!
//! A service depends on no other service and on no server. Of the core it names only what this file lists: the
//! traits that control gives it, and the small tools beside them. So a service can be read, compiled and tested
//! without the rest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::Table;

use super::circles::modules::{self, Mention, Module};
use crate::tree;

/// The services.
const SERVICES: [&str; 6] = [
    "pandastack-apps",
    "pandastack-contexts",
    "pandastack-databases",
    "pandastack-functions",
    "pandastack-scheduler",
    "pandastack-templates",
];
/// Crates that no service depends on, besides the other services: they wire services or run machines.
const ABOVE: [&str; 5] =
    ["pandastack", "pandastack-agent", "pandastack-console", "pandastack-control", "pandastack-e2b"];
/// The crate of the sandbox core, as paths name it.
const CORE: &str = "pandastack_sandboxes";
/// Items of the core that a service can use.
const BORDER: [&[&str]; 15] = [
    &["Background"],
    &["EventNotice"],
    &["command"],
    &["in_flight"],
    &["keyed_mutex"],
    &["lost"],
    &["machine"],
    &["machines"],
    &["output"],
    &["platform_templates"],
    &["snapshot_owner"],
    &["user_sandbox"],
    &["validate"],
    &["volumes", "owned"],
    &["why_closed"],
];

/// Every dependency and every path of a service that crosses the border.
pub fn problems() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for service in SERVICES {
        let dir = Path::new("crates").join(service);
        let manifest = super::read(&dir.join("Cargo.toml"))?;
        problems.extend(dependencies(service, &manifest)?);
        let root = tree::root().join(&dir).join("src/lib.rs");
        let found = paths(&modules::read(&root)?);
        problems.extend(found.into_iter().map(|(file, mention)| {
            let file = file.strip_prefix(tree::root()).unwrap_or(&file).display().to_string();
            format!(
                "{file}:{}: `{}` is not for services; use a trait of `{CORE}::machines`",
                mention.line,
                mention.segments.join("::"),
            )
        }));
    }
    Ok(problems)
}

/// Dependencies of a service on another service or on a crate above all services.
fn dependencies(service: &str, manifest: &str) -> Result<Vec<String>> {
    let manifest: Table =
        toml::from_str(manifest).with_context(|| format!("parse the manifest of {service}"))?;
    let named = dependency_tables(&manifest).into_iter().flatten();
    let is_closed = |name: &str| name != service && SERVICES.iter().chain(&ABOVE).any(|one| *one == name);
    let closed = named.map(|(name, _)| name).filter(|name| is_closed(name));
    Ok(closed
        .map(|name| {
            format!(
                "{service}: depends on {name}; declare a trait of what it needs, which control implements"
            )
        })
        .collect())
}

/// All tables of dependencies: of the crate, its tests and its build script, also for some targets only.
fn dependency_tables(manifest: &Table) -> Vec<&Table> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(|table| table.as_table());
    let targets = targets.into_iter().flatten().filter_map(|(_, target)| target.as_table());
    let parts = targets.chain([manifest]);
    parts.flat_map(|part| KINDS.iter().filter_map(|kind| part.get(*kind)?.as_table())).collect()
}

/// Every path into the core that leads elsewhere than to its border, with its file.
fn paths(modules: &[Module]) -> Vec<(PathBuf, Mention)> {
    let named = modules.iter().flat_map(|module| {
        let imports = module.imports.iter().map(|import| &import.mention);
        imports.chain(&module.mentions).map(|mention| (&module.file, mention))
    });
    let starts_with = |inside: &[String], allowed: &[&str]| {
        inside.len() >= allowed.len() && inside.iter().zip(allowed).all(|(one, other)| one == other)
    };
    let crosses = |mention: &Mention| {
        let Some((first, inside)) = mention.segments.split_first() else { return false };
        first == CORE && !BORDER.iter().any(|allowed| starts_with(inside, allowed))
    };
    named
        .filter(|(_, mention)| crosses(mention))
        .map(|(file, mention)| (file.clone(), mention.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossing(segments: &[&str]) -> bool {
        let segments = segments.iter().map(|one| (*one).to_owned()).collect();
        let mentions = vec![Mention { segments, line: 1 }];
        !paths(&[Module { mentions, ..Module::default() }]).is_empty()
    }

    #[test]
    fn a_service_uses_only_the_public_core_interface() {
        assert!(!crossing(&[CORE, "machines", "Machines"]));
        assert!(!crossing(&[CORE, "volumes", "owned", "OwnedVolumes"]));
        assert!(!crossing(&["pandastack_store", "Sandboxes"]));
        assert!(crossing(&[CORE, "Sandboxes"]));
        assert!(crossing(&[CORE, "volumes", "attach"]));
        assert!(crossing(&[CORE, "volumes"]));
        assert!(crossing(&[CORE]), "the whole crate under another name");
    }

    #[test]
    fn a_service_depends_on_no_other() {
        let manifest = |dependency: &str| format!("[dependencies]\n{dependency}.workspace = true\n");
        let of_apps = |dependency| dependencies("pandastack-apps", &manifest(dependency)).unwrap();
        assert_eq!(of_apps("pandastack-store"), [""; 0]);
        assert_eq!(of_apps("pandastack-functions").len(), 1);
        assert_eq!(of_apps("pandastack-control").len(), 1);
        let of_tests = "[dev-dependencies]\npandastack-functions.workspace = true\n";
        assert_eq!(dependencies("pandastack-apps", of_tests).unwrap().len(), 1);
        let of_linux = "[target.'cfg(unix)'.dependencies]\npandastack-functions.workspace = true\n";
        assert_eq!(dependencies("pandastack-apps", of_linux).unwrap().len(), 1);
    }

    #[test]
    fn the_tree_keeps_its_layers() {
        assert_eq!(problems().unwrap(), [""; 0]);
    }
}
