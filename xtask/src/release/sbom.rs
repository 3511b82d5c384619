//! The list of crates that the program links, in the CycloneDX format.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::plan::Release;
use crate::program::{cargo, read};
use crate::tree::root;

/// The platform of a release; crates of other platforms are not linked.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const PRODUCT: &str = "pandastack";

/// The parts of `cargo metadata` that count here.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for crates of the workspace.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `None` for what is linked, else `dev` or `build`.
    kind: Option<String>,
}

/// Writes the list.
pub fn write(release: &Release) -> Result<()> {
    let printed =
        read(cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]))?;
    let metadata: Metadata = serde_json::from_str(&printed).context("read what cargo printed")?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("read Cargo.lock")?;
    let list = bom(&metadata, &digests(&lock)?, &release.version)?;
    let target = release.out.join(format!("{PRODUCT}-{}.cdx.json", release.version));
    let text = serde_json::to_string_pretty(&list).context("write the list")? + "\n";
    std::fs::write(&target, text).with_context(|| format!("write {}", target.display()))
}

fn bom(metadata: &Metadata, digests: &BTreeMap<(String, String), String>, version: &str) -> Result<Value> {
    let linked = linked(metadata)?;
    let component = |package: &Package| {
        let mut component = json!({
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": format!("pkg:cargo/{}@{}", package.name, package.version),
        });
        if let Some(license) = &package.license {
            component["licenses"] = json!([{ "expression": license }]);
        }
        if let Some(digest) = digests.get(&(package.name.clone(), package.version.clone())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
        }
        component
    };
    let mut packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| linked.contains(package.id.as_str()) && package.source.is_some())
        .collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    let components: Vec<Value> = packages.into_iter().map(component).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": PRODUCT, "version": version } },
        "components": components,
    }))
}

/// Ids of the packages that are linked into the program.
fn linked(metadata: &Metadata) -> Result<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let product = metadata.packages.iter().find(|package| package.name == PRODUCT);
    let product = product.context("find the program among the packages")?;
    let (mut found, mut open) = (BTreeSet::new(), vec![product.id.as_str()]);
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let deps = nodes.get(id).map(|node| node.deps.as_slice()).unwrap_or_default();
        let linked = deps.iter().filter(|one| one.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        open.extend(linked.map(|one| one.pkg.as_str()));
    }
    Ok(found)
}

/// Digests of crates by name and version.
fn digests(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).context("parse Cargo.lock")?;
    let digest = |one: Locked| one.checksum.map(|checksum| ((one.name, one.version), checksum));
    Ok(lock.package.into_iter().filter_map(digest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, source: Option<&str>) -> Package {
        let source = source.map(str::to_owned);
        Package {
            id: name.into(),
            name: name.into(),
            version: "1.0.0".into(),
            license: Some("MIT".into()),
            source,
        }
    }

    fn node(id: &str, deps: &[(&str, Option<&str>)]) -> Node {
        let dependency = |(pkg, kind): &(&str, Option<&str>)| Dependency {
            pkg: (*pkg).to_owned(),
            dep_kinds: vec![Kind { kind: kind.map(str::to_owned) }],
        };
        Node { id: id.into(), deps: deps.iter().map(dependency).collect() }
    }

    #[test]
    fn the_sbom_lists_only_linked_packages() {
        let metadata = Metadata {
            packages: vec![
                package("pandastack", None),
                package("own", None),
                package("linked", Some("registry")),
                package("for-tests", Some("registry")),
                package("for-builds", Some("registry")),
            ],
            resolve: Resolve {
                nodes: vec![
                    node("pandastack", &[("own", None), ("for-tests", Some("dev"))]),
                    node("own", &[("linked", None), ("for-builds", Some("build"))]),
                    node("linked", &[("own", None)]),
                ],
            },
        };
        let lock = "[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bom = bom(&metadata, &digests(lock).unwrap(), "0.1.0").unwrap();
        let components = bom["components"].as_array().unwrap();
        assert_eq!(components.len(), 1, "{bom}");
        assert_eq!(components[0]["purl"], "pkg:cargo/linked@1.0.0");
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT");
    }
}
