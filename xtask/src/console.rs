//! Building the web console, when its sources changed since the last build.
//!
//! npm's packages come from the lock file and, after the first time, from the cache. The result is below
//! `crates/pandastack-console/pages/built`, which git ignores and the crate embeds.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::program::{npm, run};
use crate::{host, tree};

/// Sources of the pages.
const SOURCES: [&str; 2] = ["web", "sdk/typescript/src"];
/// Directory of the built pages.
const BUILT: &str = "crates/pandastack-console/pages/built";
/// File next to them with the fingerprint of their sources.
const STAMP: &str = "crates/pandastack-console/pages/built.stamp";

/// Builds the pages. Without npm the program is built without them, and reports that when a page is
/// requested.
pub fn build() -> Result<()> {
    let (stamp, root) = (tree::root().join(STAMP), tree::root());
    let sources = fingerprint(root)?;
    if root.join(BUILT).is_dir() && fs::read_to_string(&stamp).is_ok_and(|known| known == sources) {
        return Ok(());
    }
    if let Err(error) = host::install_node() {
        eprintln!("warning: the web console is left out: {error:#}");
        return Ok(());
    }
    run(npm("web", &["ci"])).context("install the web console's packages")?;
    run(npm("web", &["run", "build"])).context("build the web console")?;
    fs::write(&stamp, sources).with_context(|| format!("write {}", stamp.display()))
}

/// Names and contents of all sources.
fn fingerprint(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        walk(&root.join(source), &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.strip_prefix(root).unwrap_or(&file).hash(&mut hasher);
        fs::read(&file).with_context(|| format!("read {}", file.display()))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true if path.ends_with("node_modules") => {}
            true => walk(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_fingerprint_tracks_sources_but_not_packages() {
        let dir = std::env::temp_dir().join(format!("console-fingerprint-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("web/src/a.ts", "1");
        put("sdk/typescript/src/b.ts", "1");
        let first = fingerprint(&dir).unwrap();
        put("web/node_modules/x/index.js", "1");
        assert_eq!(fingerprint(&dir).unwrap(), first);
        put("web/src/a.ts", "2");
        let second = fingerprint(&dir).unwrap();
        assert_ne!(second, first);
        fs::rename(dir.join("sdk/typescript/src/b.ts"), dir.join("sdk/typescript/src/c.ts")).unwrap();
        assert_ne!(fingerprint(&dir).unwrap(), second);
        fs::remove_dir_all(&dir).unwrap();
    }
}
