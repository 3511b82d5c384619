//! Images by recipe: from the cache when there, built once when not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::archive;
use crate::build::{self, BUILDER_VERSION, BuildRequest};
use crate::cache::{self, Cache, CacheLock, KeyHasher};
use crate::catalog;
use crate::error::ImageError;
use crate::lock::Pins;
use crate::progress::{Phase, Progress, ProgressFn};
use crate::recipe::{Recipe, Source};

/// Names of an image's files in an archive and in a build's work directory.
const IMAGE: &str = "image.ext4";
const MANIFEST: &str = "manifest.json";

/// Policy for a locked version that Debian's archive no longer carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Locking {
    /// Take the current signed version and report it in [`ImageManifest::drifted`].
    #[default]
    AllowDrift,
    /// Fail.
    Strict,
}

/// A root filesystem, sealed. Never write to it: clone it.
#[derive(Debug, Clone)]
pub struct Image {
    /// A raw ext4 file system, sparse.
    pub path: PathBuf,
    /// Hash of everything it was made from.
    pub key: String,
    /// Contents of the image.
    pub manifest: Arc<ImageManifest>,
}

/// The contents of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageManifest {
    /// The template.
    pub name: String,
    /// The image's key.
    pub key: String,
    /// The parent image's key, if it was made from one.
    pub parent: Option<String>,
    /// The file's (apparent) size.
    pub disk_bytes: u64,
    /// Bytes in use inside.
    pub used_bytes: u64,
    /// Debian packages that this image adds to its parent.
    pub debian: Pins,
    /// Python packages that this image adds to its parent.
    pub python: Pins,
    /// Debian packages that are not as locked, `name locked -> installed`.
    pub drifted: Vec<String>,
}

/// Builds images into one cache directory.
#[derive(Debug, Clone)]
pub struct ImageBuilder {
    cache: Cache,
    locking: Locking,
    /// Recipes besides the catalog's that may be named as parents.
    parents: Vec<Recipe>,
}

impl ImageBuilder {
    /// A builder whose images are kept in `cache_dir`; see [`crate::default_cache_dir`].
    pub fn new(cache_dir: impl AsRef<Path>) -> ImageBuilder {
        ImageBuilder {
            cache: Cache::at(cache_dir.as_ref()),
            locking: Locking::default(),
            parents: Vec::new(),
        }
    }

    /// Sets the behavior for locked Debian packages that are no longer available.
    #[must_use]
    pub fn locking(self, locking: Locking) -> ImageBuilder {
        ImageBuilder { locking, ..self }
    }

    /// Allows recipes to start from `parents` in addition to the catalog's templates.
    #[must_use]
    pub fn parents(self, parents: Vec<Recipe>) -> ImageBuilder {
        ImageBuilder { parents, ..self }
    }

    /// The key of the image that `recipe` gives.
    pub fn key(&self, recipe: &Recipe) -> Result<String, ImageError> {
        let parent = match self.parent_of(recipe)? {
            Some(parent) => self.key(parent)?,
            None => String::new(),
        };
        Ok(KeyHasher::new(BUILDER_VERSION).add(&recipe.name).add(&recipe.build_inputs()).add(&parent).key())
    }

    /// The image, if it has been built.
    pub fn cached(&self, recipe: &Recipe) -> Result<Option<Image>, ImageError> {
        let key = self.key(recipe)?;
        let Ok(text) = std::fs::read_to_string(self.cache.image_manifest(&key)) else { return Ok(None) };
        let path = self.cache.image(&key);
        let manifest = serde_json::from_str(&text).ok().filter(|_| path.exists());
        Ok(manifest.map(|manifest| Image { path, key, manifest: Arc::new(manifest) }))
    }

    /// The image of `recipe`, building it and its parents as needed. Blocks for minutes on first use.
    ///
    /// Any number of callers, also in other processes, share one build. A failed build leaves nothing behind.
    pub fn ensure(&self, recipe: &Recipe, progress: ProgressFn<'_>) -> Result<Image, ImageError> {
        let say = |phase, detail: &str| progress(Progress { subject: &recipe.name, phase, detail });
        if let Some(image) = self.cached(recipe)? {
            say(Phase::Done, "cached");
            return Ok(image);
        }
        let key = self.key(recipe)?;
        let archive = archive::find(&key);
        let parent = match (&archive, self.parent_of(recipe)?) {
            // The archive has the whole image.
            (None, Some(parent)) => Some(self.ensure(parent, progress)?),
            _ => None,
        };
        let lock = self.cache.lock(&key, || say(Phase::WaitForOther, ""))?;
        if let Some(image) = self.cached(recipe)? {
            say(Phase::Done, "built by another process");
            return Ok(image);
        }
        let image = match archive {
            Some(archive) => {
                say(Phase::Unpack, "");
                self.unpack(&archive, &key, &lock)?
            }
            None => self.build(recipe, parent.as_ref(), &key, &lock, &say)?,
        };
        say(Phase::Done, "");
        Ok(image)
    }

    /// Writes the image of `recipe` as an archive into `dir`, building it first if need be. Returns the archive's path.
    pub fn export(
        &self,
        recipe: &Recipe,
        dir: &Path,
        progress: ProgressFn<'_>,
    ) -> Result<PathBuf, ImageError> {
        let image = self.ensure(recipe, progress)?;
        let manifest = self.cache.image_manifest(&image.key);
        let files = [(MANIFEST.into(), manifest), (IMAGE.into(), image.path)];
        archive::write(dir, &image.key, &files)
    }

    fn unpack(&self, archive: &Path, key: &str, lock: &CacheLock) -> Result<Image, ImageError> {
        let work = self.cache.work_dir(key, lock)?;
        archive::unpack(archive, key, work.path())?;
        let damaged = |why| ImageError::DamagedArchive { path: archive.to_path_buf(), why };
        let text = std::fs::read(work.path().join(MANIFEST)).map_err(|error| damaged(error.to_string()))?;
        let manifest: ImageManifest =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if manifest.key != key {
            return Err(damaged(format!("its image has the key {}", manifest.key)));
        }
        self.publish(&work.path().join(IMAGE), work.path(), manifest)
    }

    fn build(
        &self,
        recipe: &Recipe,
        parent: Option<&Image>,
        key: &str,
        lock: &CacheLock,
        say: &(dyn Fn(Phase, &str) + Sync),
    ) -> Result<Image, ImageError> {
        let work = self.cache.work_dir(key, lock)?;
        let parent_path = parent.map(|image| image.path.as_path());
        let built = build::build(&BuildRequest { recipe, parent: parent_path, work: work.path(), say })?;
        let drifted = recipe.lock.drift(&built.debian);
        if self.locking == Locking::Strict && !drifted.is_empty() {
            return Err(ImageError::Drifted { drifted });
        }
        for change in &drifted {
            tracing::warn!(template = %recipe.name, %change, "a Debian package differs from the lock");
        }
        let manifest = ImageManifest {
            name: recipe.name.clone(),
            key: key.to_owned(),
            parent: parent.map(|image| image.key.clone()),
            disk_bytes: recipe.disk_gib << 30,
            used_bytes: built.used_bytes,
            debian: built.debian,
            python: recipe.lock.python.clone(),
            drifted,
        };
        self.publish(&built.image, work.path(), manifest)
    }

    fn publish(&self, image: &Path, work: &Path, manifest: ImageManifest) -> Result<Image, ImageError> {
        let path = self.cache.image(&manifest.key);
        let staged = work.join(MANIFEST);
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(|error| ImageError::malformed("manifest", error))?;
        std::fs::write(&staged, text).map_err(ImageError::io("write", &staged))?;
        // Machines get clones; nothing may write here again.
        let read_only = std::fs::Permissions::from_mode(0o444);
        std::fs::set_permissions(image, read_only).map_err(ImageError::io("set the mode of", image))?;
        cache::publish(image, &path)?;
        cache::publish(&staged, &self.cache.image_manifest(&manifest.key))?;
        Ok(Image { path, key: manifest.key.clone(), manifest: Arc::new(manifest) })
    }

    fn parent_of<'a>(&'a self, recipe: &Recipe) -> Result<Option<&'a Recipe>, ImageError> {
        let Source::Template(name) = &recipe.from else { return Ok(None) };
        let parent =
            self.parents.iter().find(|parent| parent.answers_to(name)).or_else(|| catalog::find(name));
        let missing =
            || ImageError::malformed(format!("the recipe of {}", recipe.name), format!("no template {name}"));
        parent.ok_or_else(missing).map(Some)
    }
}
