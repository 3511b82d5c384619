//! Import circles: files of a crate that need each other, directly or through others.
//!
//! A file needs another when one of its paths leads there, in a `use` declaration or in code.
//! Inside a circle no file can be understood, tested or moved without the rest, so a circle may
//! have few files. A `mod` declaration alone is no need, and test-only code does not count.

mod graph;
pub(super) mod modules;
mod resolve;
mod tokens;

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::program::{cargo, read};
use crate::tree;
use graph::{Cut, Graph};
use resolve::Resolver;

/// Most files in one circle.
const FILES_MAX: usize = 5;
/// Number of edges to cut that are named.
const CUTS_SHOWN: usize = 8;

/// A library or a program.
#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: std::path::PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// Every crate whose largest circle has too many files.
pub fn problems() -> Result<Vec<String>> {
    Ok(graphs()?.iter().filter_map(|(name, graph)| circle_problem(name, graph)).collect())
}

/// The largest circle of every crate that has one, with the edges to cut.
pub fn report() -> Result<String> {
    let mut report = String::new();
    for (name, graph) in graphs()? {
        if !graph.largest_circle().is_empty() {
            writeln!(report, "{name}: {}", describe(&graph)).context("write the report")?;
        }
    }
    Ok(report)
}

/// The files of each library and program. Targets of one package are separate: neither can name the
/// other's files.
fn graphs() -> Result<Vec<(String, Graph)>> {
    let metadata = read(cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("read what `cargo metadata` printed")?;
    let mut graphs = Vec::new();
    for package in metadata.packages {
        let is_built = |target: &&Target| {
            target.kind.iter().any(|kind| kind == "bin" || kind.ends_with("lib") || kind == "proc-macro")
        };
        for target in package.targets.iter().filter(is_built) {
            let is_main = target.name.replace('_', "-") == package.name;
            let name =
                if is_main { package.name.clone() } else { format!("{}/{}", package.name, target.name) };
            graphs.push((name, Graph::of(&Resolver::read(&target.src_path)?)));
        }
    }
    Ok(graphs)
}

fn circle_problem(name: &str, graph: &Graph) -> Option<String> {
    let is_too_large = graph.largest_circle().len() > FILES_MAX;
    is_too_large.then(|| format!("{name}: a circle may have at most {FILES_MAX} files; {}", describe(graph)))
}

/// The largest circle, its files, and the edges whose removal breaks it best.
fn describe(graph: &Graph) -> String {
    let files = graph.largest_circle();
    let short = |path: &Path| path.strip_prefix(tree::root()).unwrap_or(path).display().to_string();
    let mut text = format!("{} files import each other", files.len());
    for file in files {
        text.push_str(&format!("\n    {}", short(file)));
    }
    let cuts = graph.cuts(FILES_MAX, CUTS_SHOWN);
    if !cuts.is_empty() {
        text.push_str("\n  to break the circle, remove in this order");
    }
    for Cut { from, to, lines, leaves } in cuts {
        let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
        let (from, to, lines) = (short(&from), short(&to), lines.join(","));
        text.push_str(&format!("\n    {from}:{lines} -> {to} (leaves {leaves})"));
    }
    text
}

#[cfg(test)]
mod tests;
