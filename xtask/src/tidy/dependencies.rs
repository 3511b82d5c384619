//! Checks of the crates that may be linked, by `deny.toml`: the part of `cargo deny check` that
//! needs no network.
//!
//! Checked here, because building that program takes longer than all of these checks together.
//! Advisories are left to it ([`super::advisories()`]): they are published on a server.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::licence;
use crate::program::{cargo, read};
use crate::tree;

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Default, Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Default, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Bans {
    deny: Vec<Crate>,
    skip: Vec<Crate>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Crate {
    /// A name, or `name@version` with as much of the version as tells it from others.
    #[serde(rename = "crate")]
    spec: String,
    reason: String,
}

impl Crate {
    fn is(&self, package: &Package) -> bool {
        let (name, version) = self.spec.split_once('@').unwrap_or((&self.spec, ""));
        let rest = package.version.strip_prefix(version);
        name == package.name
            && (version.is_empty() || rest.is_some_and(|rest| rest.starts_with('.') || rest.is_empty()))
    }
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` in the workspace.
    source: Option<String>,
}

/// Every crate that the policy forbids, and every exception in it that has become needless.
pub fn problems() -> Result<Vec<String>> {
    let path = tree::root().join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let policy: Policy = toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let mut metadata = cargo(&["metadata", "--locked", "--format-version", "1"]);
    for target in &policy.graph.targets {
        metadata.args(["--filter-platform", target]);
    }
    let metadata: Metadata =
        serde_json::from_str(&read(metadata)?).context("read what `cargo metadata` printed")?;
    let is_linked = |package: &Package| metadata.resolve.nodes.iter().any(|node| node.id == package.id);
    let packages: Vec<Package> = metadata.packages.into_iter().filter(is_linked).collect();
    Ok(policy_problems(&policy, &packages))
}

fn policy_problems(policy: &Policy, packages: &[Package]) -> Vec<String> {
    let mut problems: Vec<String> =
        packages.iter().flat_map(|package| package_problems(policy, package)).collect();
    let mut by_name: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in packages {
        by_name.entry(&package.name).or_default().push(package);
    }
    for versions in by_name.values() {
        let skipped = |package: &&&Package| policy.bans.skip.iter().any(|skip| skip.is(package));
        if versions.len() - versions.iter().filter(skipped).count() > 1 {
            let all: Vec<&str> = versions.iter().map(|package| package.version.as_str()).collect();
            let (name, all) = (&versions[0].name, all.join(" and "));
            problems.push(format!(
                "deny.toml: {name} is linked as {all}; use one, or skip the older with a reason"
            ));
        }
    }
    for skip in &policy.bans.skip {
        let needed =
            by_name.values().any(|same| same.len() > 1 && same.iter().any(|package| skip.is(package)));
        if !needed {
            problems.push(format!("deny.toml: {} is no second version any more; remove the skip", skip.spec));
        }
    }
    problems
}

fn package_problems(policy: &Policy, package: &Package) -> Vec<String> {
    let mut problems = Vec::new();
    let Package { name, version, license, source, .. } = package;
    let expression = license.as_deref().unwrap_or_default();
    if !licence::is_allowed(expression, &policy.licenses.allow) {
        problems.push(format!(
            "deny.toml: {name} {version} has the licence {expression:?}, which is not allowed"
        ));
    }
    if let Some(source) = source {
        let registry = source.strip_prefix("registry+").or_else(|| source.strip_prefix("sparse+"));
        if !registry
            .is_some_and(|registry| policy.sources.allow_registry.iter().any(|allowed| allowed == registry))
        {
            problems.push(format!("deny.toml: {name} {version} comes from {source}, which is not allowed"));
        }
    }
    let denied = policy.bans.deny.iter().filter(|denied| denied.is(package));
    problems.extend(denied.map(|denied| format!("deny.toml: {name} {version} is banned: {}", denied.reason)));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn package(name: &str, version: &str) -> Package {
        Package {
            id: format!("{name}@{version}"),
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some("MIT OR Apache-2.0".to_owned()),
            source: Some(CRATES_IO.to_owned()),
        }
    }

    #[track_caller]
    fn check(packages: &[Package], expect: &[&str]) {
        let policy = r#"
            [graph]
            targets = []
            [licenses]
            allow = ["MIT"]
            [bans]
            deny = [{ crate = "bad", reason = "there is a better one" }]
            skip = [{ crate = "old@0.1", reason = "needed" }]
            [sources]
            allow-registry = ["https://github.com/rust-lang/crates.io-index"]
        "#;
        let problems = policy_problems(&toml::from_str(policy).unwrap(), packages);
        assert_eq!(problems.len(), expect.len(), "{problems:?}");
        for (problem, expect) in problems.iter().zip(expect) {
            assert!(problem.contains(expect), "{problem}");
        }
    }

    #[test]
    fn disallowed_crates_are_reported() {
        let with = |more: Vec<Package>| {
            let needed = vec![package("old", "0.1.9"), package("old", "0.2.0")];
            needed.into_iter().chain(more).collect::<Vec<_>>()
        };
        check(&with(vec![]), &[]);
        check(&with(vec![package("bad", "1.0.0")]), &["bad 1.0.0 is banned: there is a better one"]);
        check(&with(vec![package("a", "1.0.0"), package("a", "2.0.0")]), &["a is linked as 1.0.0 and 2.0.0"]);
        check(&with(vec![package("old", "0.10.0")]), &["old is linked as 0.1.9 and 0.2.0 and 0.10.0"]);
        let copyleft = Package { license: Some("GPL-3.0".to_owned()), ..package("a", "1.0.0") };
        check(&with(vec![copyleft]), &["the licence \"GPL-3.0\""]);
        check(&with(vec![Package { license: None, ..package("a", "1.0.0") }]), &["the licence \"\""]);
        let git = Package { source: Some("git+https://example.com/a".to_owned()), ..package("a", "1.0.0") };
        check(&with(vec![git]), &["comes from git+https://example.com/a"]);
        check(&with(vec![Package { source: None, ..package("ours", "1.0.0") }]), &[]);
        check(&[package("old", "0.2.0")], &["old@0.1 is no second version any more"]);
    }
}
