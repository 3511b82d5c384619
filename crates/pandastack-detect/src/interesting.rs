//! Selects which files of a source to read.

use std::collections::BTreeSet;

use crate::limits::TEXTS_MAX;
use crate::manifest::MANIFEST;
use crate::{locks, python};

/// Returns those of the app's files whose text affects detection.
pub fn interesting(files: &BTreeSet<String>) -> Vec<String> {
    const NAMED: [&str; 22] = [
        MANIFEST,
        "package.json",
        "Procfile",
        "Staticfile",
        "requirements.txt",
        "pyproject.toml",
        "Pipfile",
        ".nvmrc",
        ".node-version",
        ".tool-versions",
        ".python-version",
        "next.config.js",
        "next.config.mjs",
        "next.config.ts",
        "vite.config.js",
        "vite.config.mjs",
        "vite.config.ts",
        "vite.config.mts",
        "react-router.config.ts",
        "astro.config.mjs",
        "manage.py",
        "runtime.txt",
    ];
    let named = NAMED.iter().filter(|name| files.contains(**name)).map(|name| (*name).to_owned());
    let read = files.iter().filter(|path| locks::is_list(path) || python::may_hold_app(path)).cloned();
    named.chain(read.filter(|path| !NAMED.contains(&path.as_str()))).take(TEXTS_MAX).collect()
}
