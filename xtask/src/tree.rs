//! Paths of the clone, and of the cache outside it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use nix::unistd::Uid;

use crate::checkout;
use crate::program::{program, read};

/// Directory in which the sources are built and tested: the clone, or CI's checkout of it.
pub fn root() -> &'static Path {
    checkout::in_use().unwrap_or_else(clone_root)
}

/// The clone's root.
pub fn clone_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Files that are in the repository or would be, from its root.
pub fn files() -> Result<Vec<PathBuf>> {
    let mut git = program("git");
    git.current_dir(clone_root());
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let listed = read(git)?;
    Ok(listed.lines().map(PathBuf::from).filter(|path| clone_root().join(path).is_file()).collect())
}

/// Images and kernels, and the data of scratch platforms: what root's processes write. Never in a
/// person's home: that may be closed to the users that machines run as, and root's files in it
/// would be in the way.
pub fn machine_cache_dir() -> PathBuf {
    given_cache_dir().unwrap_or_else(|| "/var/cache/pandastack".into())
}

/// Virtual environments, npm's cache and CI's build output. Outside the clone, shared by all
/// clones.
pub fn cache_dir() -> PathBuf {
    if Uid::effective().is_root() {
        return machine_cache_dir();
    }
    let of_person = || {
        let home = std::env::home_dir().unwrap_or_else(std::env::temp_dir);
        std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from)
    };
    given_cache_dir().unwrap_or_else(|| of_person().join("pandastack"))
}

fn given_cache_dir() -> Option<PathBuf> {
    std::env::var_os("PANDASTACK_CACHE_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Directory to which cargo builds. In CI every clone is new, so its build output goes to a
/// directory that the next clone reuses.
pub fn target_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        return std::path::absolute(&dir).unwrap_or_else(|_| dir.into());
    }
    if in_ci() { cache_dir().join("target") } else { root().join("target") }
}

/// Returns whether this runs in CI, in a clone without a user.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// A cargo profile of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Optimized as a whole: for releases
    Dist,
    /// Optimized: for `up` and for measurements
    Release,
    /// Compiled fast: for tests
    Develop,
}

impl Profile {
    /// Its name for `--profile`, which is also its directory below [`target_dir`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Dist => "dist",
            Self::Release => "release",
            Self::Develop => "develop",
        }
    }
}

static PROFILE: OnceLock<Profile> = OnceLock::new();

/// Makes this run build with a profile. The first call counts.
pub fn use_profile(profile: Profile) {
    let _ = PROFILE.set(profile);
}

/// The profile of this run.
pub fn profile() -> Profile {
    PROFILE.get().copied().unwrap_or(Profile::Release)
}

/// The `pandastack` program, once built.
pub fn pandastack() -> PathBuf {
    target_dir().join(profile().name()).join("pandastack")
}
