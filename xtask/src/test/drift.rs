//! The templates with today's newest packages in place of the locked ones, and what changed since
//! they were locked.
//!
//! Registries change: a package that changes its behavior breaks a template at its next lock. This test
//! detects it earlier. It works on a copy of `templates/` and with a cache of its own, which is removed at
//! the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::counts::Counts;
use crate::host::{as_root, give_back};
use crate::program::run;
use crate::tree;

/// The kernel, and the catalogue's templates with parents before their children.
const LOCKED: [&str; 8] =
    ["kernel", "base", "code-interpreter", "postgres-16", "agent", "browser", "docker", "claude-agent"];

/// A package of a registry, and its version.
type Versions = BTreeMap<String, String>;

/// Locks and builds every template again.
pub fn templates() -> Result<Counts> {
    let dir = tree::machine_cache_dir().join("drift");
    remove(&dir)?;
    let outcome = templates_in(&dir);
    remove(&dir)?;
    outcome
}

fn templates_in(dir: &Path) -> Result<Counts> {
    let templates = dir.join("templates");
    run(with(as_root("mkdir"), ["-p".as_ref(), dir.as_os_str()]))?;
    run(with(as_root("cp"), ["-r".as_ref(), tree::root().join("templates").as_os_str(), dir.as_os_str()]))?;
    let mut counts = Counts::default();
    for name in LOCKED {
        let mut lock = pandastack_image(dir);
        lock.args(["lock", name]).arg(&templates);
        counts.add(&attempt(&format!("lock {name}"), lock));
    }
    give_back(&templates)?;
    for name in LOCKED {
        let (before, after) =
            (versions(&tree::root().join("templates").join(name))?, versions(&templates.join(name))?);
        counts.notes.extend(changes(&before, &after).into_iter().map(|change| format!("{name}: {change}")));
    }
    for name in LOCKED.into_iter().filter(|name| *name != "kernel") {
        let mut build = pandastack_image(dir);
        build.args(["build", name, "--templates"]).arg(&templates);
        counts.add(&attempt(&format!("build {name}"), build));
    }
    Ok(counts)
}

fn pandastack_image(dir: &Path) -> Command {
    let mut command = as_root(tree::pandastack());
    command.env("PANDASTACK_CACHE_DIR", dir).arg("image");
    command
}

fn attempt(name: &str, command: Command) -> Counts {
    match run(command) {
        Ok(()) => Counts::one(true),
        Err(error) => Counts { failures: vec![format!("{name}: {error:#}")], ..Counts::one(false) },
    }
}

fn with<'a>(mut command: Command, args: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> Command {
    command.args(args);
    command
}

fn remove(dir: &PathBuf) -> Result<()> {
    let mut command = as_root("rm");
    command.arg("-rf").arg(dir);
    run(command)
}

/// Versions that a template's locks name.
fn versions(template: &Path) -> Result<Versions> {
    let read = |name: &str| {
        let path = template.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let mut versions = of_lock(&read("lock.toml")?)?;
    if template.join("npm-lock.json").exists() {
        versions.extend(of_npm(&read("npm-lock.json")?)?);
    }
    Ok(versions)
}

fn of_lock(text: &str) -> Result<Versions> {
    let lock: toml::Table = toml::from_str(text).context("parse a lock.toml")?;
    let mut versions = Versions::new();
    let version = |pin: &toml::Table| Some(pin.get("version")?.as_str()?.to_owned());
    if let Some(package) = lock.get("package").and_then(toml::Value::as_str) {
        // Its name carries a number that changes with the version.
        versions
            .extend(version(&lock).map(|version| ("kernel".to_owned(), format!("{version} ({package})"))));
    }
    for (registry, pins) in lock.iter().filter_map(|(registry, pins)| Some((registry, pins.as_table()?))) {
        let pins = pins.iter().filter_map(|(name, pin)| Some((name, version(pin.as_table()?)?)));
        versions.extend(pins.map(|(name, version)| (format!("{registry} {name}"), version)));
    }
    Ok(versions)
}

fn of_npm(text: &str) -> Result<Versions> {
    #[derive(serde::Deserialize)]
    struct Lock {
        packages: BTreeMap<String, Package>,
    }
    #[derive(serde::Deserialize)]
    struct Package {
        version: Option<String>,
    }
    let lock: Lock = serde_json::from_str(text).context("parse an npm-lock.json")?;
    let named = lock.packages.into_iter().filter_map(|(path, package)| {
        let name = path.rsplit_once("node_modules/")?.1.to_owned();
        Some((format!("npm {name}"), package.version?))
    });
    Ok(named.collect())
}

/// Each package that was added, removed or changed its version.
fn changes(before: &Versions, after: &Versions) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let change = |name: &String| {
        let (old, new) = (before.get(name), after.get(name));
        let shown = |version: Option<&String>| version.map_or("none", String::as_str).to_owned();
        (old != new).then(|| format!("{name} {} -> {}", shown(old), shown(new)))
    };
    names.into_iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_changes_are_listed() {
        let before = of_lock(
            "[debian.a]\nversion = \"1\"\n[debian.gone]\nversion = \"1\"\n[python.b]\nversion = \"2\"\n",
        );
        let after = of_lock(
            "[debian.a]\nversion = \"2\"\n[python.b]\nversion = \"2\"\n[python.c]\nversion = \"3\"\n",
        );
        let changes = changes(&before.unwrap(), &after.unwrap());
        assert_eq!(changes, ["debian a 1 -> 2", "debian gone 1 -> none", "python c none -> 3"]);
    }

    #[test]
    fn every_template_lock_is_parsed() {
        for name in LOCKED {
            assert!(!versions(&tree::root().join("templates").join(name)).unwrap().is_empty(), "{name}");
        }
        let npm = r#"{"packages": {"": {"name": "x"}, "node_modules/a/node_modules/b": {"version": "1"}}}"#;
        assert_eq!(of_npm(npm).unwrap(), Versions::from([("npm b".to_owned(), "1".to_owned())]));
    }
}
