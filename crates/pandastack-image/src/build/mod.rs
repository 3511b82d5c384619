//! One build: a recipe becomes a sealed ext4 image.
//!
//! ```text
//! <work>/image.ext4     the disk being built, loop-mounted on <work>/root in a mount namespace of the build's own
//! <work>/root           the tree
//! <work>/download       what apt, pip and npm of the host fetched
//! ```
//!
//! The namespace belongs to one thread: when the thread ends, for any reason, every mount and loop
//! device goes with it, and no other process on the host ever sees them. Programs of the tree run
//! in a chroot without network; only the host's own clients fetch anything. Debian, PyPI and npm
//! packages are pinned by the template's lock.

mod chroot;
mod configure;
mod debian_layer;
mod disk;
mod namespace;
mod npm_layer;
mod place;
mod python_layer;

use std::path::{Path, PathBuf};

pub(crate) use debian_layer::bootstrap;
pub(crate) use npm_layer::resolve as resolve_npm;
pub(crate) use python_layer::resolve as resolve_python;

use crate::error::ImageError;
use crate::lock::Pins;
use crate::progress::Phase;
use crate::recipe::{Recipe, Source};
use chroot::Chroot;
use disk::Disk;

/// Changes whenever the same recipe and lock would give another tree.
pub(crate) const BUILDER_VERSION: &str = "image-1";

/// Inputs of a build besides its recipe.
pub(crate) struct BuildRequest<'a> {
    pub(crate) recipe: &'a Recipe,
    /// The image of the template in `from`, if it is one.
    pub(crate) parent: Option<&'a Path>,
    /// An empty directory.
    pub(crate) work: &'a Path,
    /// Called at every step.
    pub(crate) say: &'a (dyn Fn(Phase, &str) + Sync),
}

/// A finished image, still in the work directory.
pub(crate) struct Built {
    pub(crate) image: PathBuf,
    /// Debian packages that this build (not its parent's) installed.
    pub(crate) debian: Pins,
    /// Bytes used in the tree.
    pub(crate) used_bytes: u64,
}

/// Builds in a mount namespace of its own.
pub(crate) fn build(request: &BuildRequest<'_>) -> Result<Built, ImageError> {
    namespace::with_private_mounts(&request.recipe.name, || build_here(request))
}

fn build_here(request: &BuildRequest<'_>) -> Result<Built, ImageError> {
    let BuildRequest { recipe, work, say, .. } = request;
    let disk = match request.parent {
        Some(parent) => {
            say(Phase::CopyParent, "");
            Disk::from_parent(work, parent, recipe.disk_gib)?
        }
        None => Disk::new(work, recipe.disk_gib)?,
    };
    let mounted = disk.mount()?;
    let root = mounted.root();
    let download = work.join("download");
    std::fs::create_dir_all(&download).map_err(ImageError::io("create", &download))?;

    let chroot = Chroot::at(root);
    let debian = install_packages(&chroot, &download, recipe, *say)?;
    say(Phase::Configure, "");
    configure::apply(&chroot, recipe)?;
    say(Phase::Verify, "");
    for command in &recipe.verify {
        chroot.shell(command, "verify the finished tree")?;
    }
    configure::clean(root)?;
    say(Phase::Seal, "");
    let used_bytes = mounted.seal()?;
    Ok(Built { image: disk.into_image(), debian, used_bytes })
}

/// Every package of the recipe; returns Debian's.
fn install_packages(
    chroot: &Chroot,
    download: &Path,
    recipe: &Recipe,
    say: &(dyn Fn(Phase, &str) + Sync),
) -> Result<Pins, ImageError> {
    let mut debian = Pins::new();
    match &recipe.from {
        Source::Debian(suite) => {
            say(Phase::Debian, &format!("{suite}, {} packages asked for", recipe.debian.packages.len()));
            debian = bootstrap(chroot.root(), download, suite, recipe)?;
        }
        Source::Template(_) if !recipe.debian.packages.is_empty() => {
            say(Phase::Debian, &recipe.debian.packages.join(" "));
            debian = debian_layer::extend(chroot, recipe)?;
        }
        Source::Template(_) => {}
    }
    if !recipe.npm.packages.is_empty() {
        say(Phase::Npm, &format!("{} packages", recipe.npm.packages.len()));
        npm_layer::install(chroot.root(), download, recipe)?;
    }
    if !recipe.python.packages.is_empty() {
        say(Phase::Python, &format!("{} packages", recipe.lock.python.len()));
        python_layer::install(chroot, download, recipe)?;
    }
    Ok(debian)
}

/// The Debian packages that `recipe` adds to its parent's tree today.
pub(crate) fn resolve_debian(recipe: &Recipe, parent: &Path, work: &Path) -> Result<Pins, ImageError> {
    std::fs::create_dir_all(work).map_err(ImageError::io("create", work))?;
    namespace::with_private_mounts(&recipe.name, || {
        let disk = Disk::from_parent(work, parent, recipe.disk_gib)?;
        let mounted = disk.mount()?;
        debian_layer::extend(&Chroot::at(mounted.root()), recipe)
    })
}
