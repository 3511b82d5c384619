//! Where things are: the clone, and the cache outside it.

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

/// The clone's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Images, kernels, virtual environments and package caches: outside the clone, shared by all clones.
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("PANDASTACK_CACHE_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    if Uid::effective().is_root() {
        return "/var/cache/pandastack".into();
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from).join("pandastack")
}

/// Where cargo builds to. In CI every clone is fresh, so its build output goes where the next clone finds it.
pub fn target_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        return std::path::absolute(&dir).unwrap_or_else(|_| dir.into());
    }
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    if in_ci { cache_dir().join("target") } else { root().join("target") }
}

/// The `pandastack` program, once built.
pub fn pandastack() -> PathBuf {
    target_dir().join("release/pandastack")
}
