//! Files whose content decides whether installing again would change anything.
//!
//! When in doubt, a file is included: a needless file costs an installation, a missing one leaves
//! an app with packages that its source no longer requires.

use crate::view::View;

/// Lock files of installers that only a custom command uses.
const COMMAND_FILES: [&str; 18] = [
    "Makefile",
    "Gemfile",
    "Gemfile.lock",
    "go.mod",
    "go.sum",
    "composer.json",
    "composer.lock",
    "Cargo.toml",
    "Cargo.lock",
    "mix.exs",
    "mix.lock",
    "deno.json",
    "deno.lock",
    "package.json",
    "package-lock.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "bun.lock",
];
const PYTHON: [&str; 8] = [
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "Pipfile",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
];
/// Scripts of a package.json that run when it is installed.
pub(crate) const NODE_SCRIPTS: [&str; 4] = ["preinstall", "install", "postinstall", "prepare"];
/// Settings of the programs that install Node's packages.
const NODE: [&str; 4] = [".npmrc", ".pnpmfile.cjs", "pnpm-workspace.yaml", "bunfig.toml"];

/// Dependency files of Python: requirement lists, included files, and lock files.
pub(crate) fn python(view: &View) -> Vec<String> {
    let listed = view.files.iter().filter(|path| is_list(path)).cloned();
    let fixed = PYTHON.iter().filter(|name| view.has(name)).map(|name| (*name).to_owned());
    let mut locks = Vec::new();
    add(&mut locks, view.first(&["requirements.txt"]).map(str::to_owned));
    add(&mut locks, listed.chain(included(view)).chain(fixed));
    locks
}

/// Returns whether the file may be a pip requirements or constraints file.
pub(crate) fn is_list(path: &str) -> bool {
    let Some(stem) = path.strip_suffix(".txt") else { return false };
    match stem.split_once('/') {
        None => stem.starts_with("requirements") || stem.starts_with("constraints"),
        Some((directory, rest)) => directory == "requirements" && !rest.contains('/'),
    }
}

/// Files that requirements.txt includes by `-r` and `-c`, wherever they are.
pub(crate) fn included(view: &View) -> Vec<String> {
    let mut found = Vec::new();
    for line in view.text("requirements.txt").unwrap_or_default().lines().map(str::trim) {
        let flags = ["--requirement", "--constraint", "-r", "-c"];
        let Some(rest) = flags.iter().find_map(|flag| line.strip_prefix(flag)) else { continue };
        let path =
            rest.trim_start_matches(['=', ' ', '\t']).split([' ', '\t', '#']).next().unwrap_or_default();
        let path = path.trim_start_matches("./");
        // Files beside the app's directory are not listed, but can be read.
        if view.has(path) || path.starts_with("../") {
            found.push(path.to_owned());
        }
    }
    found
}

/// Dependency files of Node, in addition to package.json and its lock file: files that the
/// installation reads. `scripts` are the scripts that it runs.
pub(crate) fn node<'a>(view: &View, scripts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut locks = Vec::new();
    add(&mut locks, NODE.iter().filter(|name| view.has(name)).map(|name| (*name).to_owned()));
    let is_patch = |path: &str| path.starts_with("patches/") || path.starts_with(".yarn/patches/");
    let read = view.files.iter().filter(|path| is_patch(path) || path.ends_with(".prisma"));
    add(&mut locks, read.cloned());
    for script in scripts {
        add(&mut locks, files_in_command(view, script));
    }
    locks
}

/// Adds files that a configured command may read: files that it names, and files of well-known
/// installers.
pub(crate) fn add_command_files(locks: &mut Vec<String>, view: &View, command: &str) {
    add(locks, files_in_command(view, command));
    add(locks, python(view));
    add(locks, COMMAND_FILES.iter().filter(|name| view.has(name)).map(|name| (*name).to_owned()));
}

/// Files of the source that a command names.
fn files_in_command(view: &View, command: &str) -> Vec<String> {
    let words = command.split(|c: char| c.is_whitespace() || ";&|()<>\"'=".contains(c));
    let paths = words.map(|word| word.trim_start_matches("./")).filter(|word| view.has(word));
    paths.map(str::to_owned).collect()
}

/// Adds missing entries.
fn add(locks: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for path in more {
        if !locks.contains(&path) {
            locks.push(path);
        }
    }
}
