//! A Python with this clone's SDK. Kept in the cache, and created again when its inputs change.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::program::{program, read, run};
use crate::tree;

/// The interpreter of a virtual environment that has this clone's SDK, its test tools, and other
/// people's clients; in `published/` beside them, where nothing finds it by itself, the published
/// client that has the name of ours.
pub fn ensure() -> Result<PathBuf> {
    let sdk = tree::root().join("sdk/python");
    let manifest = std::fs::read(sdk.join("pyproject.toml")).context("read sdk/python/pyproject.toml")?;
    let clients = tree::root().join("tests/e2e/python/requirements.txt");
    let published = tree::root().join("tests/e2e/python/requirements-published.txt");
    let constraints = tree::root().join("tests/e2e/python/constraints.txt");
    let pins =
        [&clients, &published, &constraints].map(std::fs::read).into_iter().collect::<Result<Vec<_>, _>>();
    let pins = pins.context("read the requirements in tests/e2e/python")?;
    let mut ask_version = program("python3");
    ask_version.args(["-c", "import sys; print(sys.prefix, sys.version)"]);
    let mut hasher = DefaultHasher::new();
    (read(ask_version)?, &sdk, manifest, pins).hash(&mut hasher);
    let dir = tree::cache_dir().join(format!("venvs/{:016x}", hasher.finish()));
    let python = dir.join("bin/python");
    let finished = dir.join("finished");
    if finished.exists() {
        return Ok(python);
    }
    let mut venv = program("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&dir);
    run(venv)?;
    let pip = || {
        let mut pip = program(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip
    };
    let own = || {
        let mut own = pip();
        own.arg("--requirement").arg(&clients).arg("--editable").arg(format!("{}[test]", sdk.display()));
        own
    };
    let mut pinned = own();
    pinned.arg("--constraint").arg(&constraints);
    if let Err(error) = run(pinned) {
        // Another Python may need other versions, and a version may have been withdrawn.
        eprintln!("warning: {error:#}; installing the newest versions that fit");
        run(own())?;
    }
    let mut apart = pip();
    apart.arg("--target").arg(dir.join("published")).arg("--requirement").arg(&published);
    run(apart)?;
    std::fs::write(&finished, "").context("mark the environment as finished")?;
    Ok(python)
}
