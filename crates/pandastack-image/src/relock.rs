//! Regenerates locks from the current state of the registries, for `cargo xtask template lock <name>`.

use std::path::Path;

use crate::build;
use crate::builder::ImageBuilder;
use crate::cache::Cache;
use crate::catalog;
use crate::error::ImageError;
use crate::kernel::Kernel;
use crate::lock::{Lock, Pins};
use crate::progress::{Phase, Progress, ProgressFn};
use crate::recipe::{Recipe, Source};

/// Rewrites `lock.toml` (and `npm-lock.json`) in `template_dir`, a directory with a `template.toml`.
///
/// Debian's part is found by really installing, so this takes about a minute for a root template.
pub fn relock_template(
    template_dir: &Path,
    cache_dir: &Path,
    progress: ProgressFn<'_>,
) -> Result<Lock, ImageError> {
    let path = template_dir.join("template.toml");
    let text = std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
    let recipe = Recipe::parse(&text, Lock::default())?;
    let say = |phase| progress(Progress { subject: &recipe.name, phase, detail: "resolve" });
    let cache = Cache::at(cache_dir);
    let held = cache.lock("relock", || say(Phase::WaitForOther))?;
    let work = cache.work_dir("relock", &held)?;
    let mut lock = Lock::default();
    if !recipe.npm.packages.is_empty() {
        say(Phase::Npm);
        lock.npm = build::resolve_npm(work.path(), &recipe)?;
    }
    if !recipe.python.packages.is_empty() {
        say(Phase::Python);
        lock.python = build::resolve_python(work.path(), &recipe)?;
    }
    say(Phase::Debian);
    lock.debian = resolve_debian(&recipe, work.path(), cache_dir, progress)?;
    write(&template_dir.join("lock.toml"), &lock.to_toml(&recipe.name))?;
    if !lock.npm.is_empty() {
        write(&template_dir.join("npm-lock.json"), &lock.npm)?;
    }
    say(Phase::Done);
    Ok(lock)
}

/// The Debian packages that the recipe adds, found by installing them without pins.
fn resolve_debian(
    recipe: &Recipe,
    work: &Path,
    cache_dir: &Path,
    progress: ProgressFn<'_>,
) -> Result<Pins, ImageError> {
    match &recipe.from {
        Source::Debian(suite) => {
            let root = work.join("root");
            std::fs::create_dir_all(&root).map_err(ImageError::io("create", &root))?;
            build::bootstrap(&root, work, suite, recipe)
        }
        Source::Template(_) if recipe.debian.packages.is_empty() => Ok(Pins::new()),
        Source::Template(name) => {
            let unknown = || {
                ImageError::malformed(format!("the recipe of {}", recipe.name), format!("no template {name}"))
            };
            let parent = catalog::find(name).ok_or_else(unknown)?;
            let parent = ImageBuilder::new(cache_dir).ensure(parent, progress)?;
            build::resolve_debian(recipe, &parent.path, &work.join("child"))
        }
    }
}

/// Pins the guest kernel to the archive's current one in `templates_dir`/kernel/lock.toml.
pub fn relock_kernel(templates_dir: &Path, cache_dir: &Path) -> Result<(), ImageError> {
    let pin = Kernel::current_pin(cache_dir)?;
    write(&templates_dir.join("kernel/lock.toml"), &pin.to_toml())
}

fn write(path: &Path, text: &str) -> Result<(), ImageError> {
    std::fs::write(path, text).map_err(ImageError::io("write", path))
}
