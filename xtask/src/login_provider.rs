//! A login provider for tests: a certified one, from npm by a lock file. It is installed into the cache, not
//! into the clone.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::program::{npm, run};
use crate::tree;

/// Directory of its lock file.
const SOURCE: &str = "crates/pandastack-control/tests/login_provider";
const FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// The folder with its `node_modules`.
pub fn ensure() -> Result<PathBuf> {
    let source = tree::root().join(SOURCE);
    let lock = source.join("package-lock.json");
    let text = std::fs::read(&lock).with_context(|| format!("read {}", lock.display()))?;
    let cache = tree::cache_dir().join("login-provider");
    let dir = cache.join("installed");
    // The lock file was copied after the packages were installed: an equal lock file means equal
    // packages.
    if std::fs::read(dir.join("package-lock.json")).is_ok_and(|installed| installed == text) {
        return Ok(dir);
    }
    let begun = cache.join("begun");
    if begun.exists() {
        std::fs::remove_dir_all(&begun).context("remove what an interrupted install left")?;
    }
    std::fs::create_dir_all(&begun).with_context(|| format!("make {}", begun.display()))?;
    for name in FILES {
        std::fs::copy(source.join(name), begun.join(name)).with_context(|| format!("copy {name}"))?;
    }
    run(npm(&begun, &["ci", "--ignore-scripts"])).context("install the login provider")?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("remove another version of the login provider")?;
    }
    std::fs::rename(&begun, &dir).with_context(|| format!("move the provider to {}", dir.display()))?;
    Ok(dir)
}
