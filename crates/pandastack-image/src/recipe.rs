//! The recipe of a template: `templates/<name>/template.toml`.
//!
//! A recipe is data, never a program: packages by name, files, and a few commands that run in the
//! offline chroot. Exactly which packages those names mean is the [`Lock`]'s part. Fields, in the
//! order of a build:
//!
//! ```text
//! from -> debian -> npm -> python -> file, symlink, environment -> run -> verify          (this crate)
//! cpu, memory_mib, volume, warm                                                            (the agent's bake)
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::lock::Lock;

/// A template's name becomes part of paths and API answers.
const NAME_BYTES_MAX: usize = 57;

/// One template, with its lock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The name clients use.
    pub name: String,
    /// Other names for the same template.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Human-readable sentence.
    pub description: String,
    /// Groups templates in listings.
    pub category: String,
    /// Programs a user can count on, for listings.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Virtual CPUs.
    pub cpu: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Size of the root disk. The image is sparse: only used blocks take space.
    pub disk_gib: u64,
    /// Base of the build.
    pub from: Source,
    /// Debian packages by name.
    #[serde(default)]
    pub debian: DebianPackages,
    /// npm packages, and which of their files go where.
    #[serde(default)]
    pub npm: NpmPackages,
    /// PyPI packages, installed for the system's Python or placed file by file.
    #[serde(default)]
    pub python: PythonPackages,
    /// Files to write.
    #[serde(default, rename = "file")]
    pub files: Vec<RecipeFile>,
    /// Symbolic links to make.
    #[serde(default, rename = "symlink")]
    pub symlinks: Vec<SymlinkEntry>,
    /// Environment of everything started in the machine; a child's entries win over its parent's.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Shell commands that finish the tree, run as root in the chroot without network.
    #[serde(default)]
    pub run: Vec<String>,
    /// Shell commands that must succeed in the finished tree.
    #[serde(default)]
    pub verify: Vec<String>,
    /// Commands that users are likely to run first; the agent runs them before it freezes the
    /// template.
    #[serde(default)]
    pub warm: Vec<String>,
    /// A durable disk that every machine of the template gets, as the bake left it.
    #[serde(default)]
    pub volume: Option<VolumeEntry>,
    /// The exact packages.
    #[serde(skip)]
    pub lock: Lock,
}

/// The source of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A fresh installation of this Debian release.
    Debian(String),
    /// Another template's finished tree.
    Template(String),
}

/// The `debian` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DebianPackages {
    /// Names, as for `apt-get install`.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Paths (dpkg globs) that are left out of every package.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Exceptions from `exclude`.
    #[serde(default)]
    pub include: Vec<String>,
}

/// The `npm` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NpmPackages {
    /// Package to version range; the lock has the exact version.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
    /// Files to take out of the installed packages. Nothing else gets into the tree.
    #[serde(default)]
    pub place: Vec<CopiedFile>,
}

/// The `python` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonPackages {
    /// The interpreter in the tree, such as `3.13`; wheels are chosen for it.
    #[serde(default)]
    pub version: String,
    /// Requirements by name; dependencies follow from the lock.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Files to take out of wheels that carry programs. If given, nothing is installed for the
    /// tree's Python, which then need not have one, and nothing else gets into the tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub place: Vec<CopiedFile>,
}

/// A file or directory of unpacked packages and its place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopiedFile {
    /// Relative to `node_modules`, or to where the wheels are unpacked.
    pub from: String,
    /// Absolute, in the tree.
    pub to: String,
}

/// A file with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeFile {
    /// Absolute, in the tree.
    pub path: String,
    /// All of it.
    pub content: String,
    /// Permission bits.
    #[serde(default = "default_file_mode")]
    pub mode: u32,
}

fn default_file_mode() -> u32 {
    0o644
}

/// The `volume` table. It is mounted before `warm` runs, which may fill it; each machine gets a copy of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeEntry {
    /// Mount path.
    pub path: String,
    /// Size of the volume. It is sparse.
    pub size_mb: u64,
}

/// A symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymlinkEntry {
    /// Absolute, in the tree.
    pub path: String,
    /// Target of the link.
    pub target: String,
}

impl Recipe {
    /// Parses a recipe and attaches its lock.
    pub fn parse(text: &str, lock: Lock) -> Result<Recipe, ImageError> {
        let recipe: Recipe =
            toml::from_str(text).map_err(|error| ImageError::malformed("template.toml", error))?;
        recipe.validate()?;
        Ok(Recipe { lock, ..recipe })
    }

    /// Reads a directory with a `template.toml`, its `lock.toml` and, if there is one, its `npm-lock.json`.
    pub fn read(template_dir: &Path) -> Result<Recipe, ImageError> {
        let read = |name: &str| {
            let path = template_dir.join(name);
            std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))
        };
        let npm =
            if template_dir.join("npm-lock.json").exists() { read("npm-lock.json")? } else { String::new() };
        Recipe::parse(&read("template.toml")?, Lock::parse(&read("lock.toml")?, &npm)?)
    }

    /// Returns whether `name` is the recipe's name or an alias of it.
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// All inputs that determine the bytes of the image, and nothing else, as one text.
    pub(crate) fn build_inputs(&self) -> String {
        let inputs = (
            (&self.from, self.disk_gib, &self.debian, &self.npm, &self.python),
            (&self.files, &self.symlinks, &self.environment, &self.run, &self.verify),
            self.lock.to_text(),
        );
        // Strings, numbers, maps with string keys: these always serialize.
        serde_json::to_string(&inputs).expect("a recipe serializes")
    }

    fn validate(&self) -> Result<(), ImageError> {
        let fail = |why: String| Err(ImageError::malformed(format!("the recipe of {}", self.name), why));
        for name in self.aliases.iter().chain([&self.name]) {
            if !is_name(name) {
                return fail(format!(
                    "{name:?} is not a name: use up to {NAME_BYTES_MAX} of a-z, 0-9, '-' and '.'"
                ));
            }
        }
        if self.cpu == 0 || self.memory_mib < 128 || self.disk_gib == 0 {
            return fail("cpu, memory_mib (at least 128) and disk_gib must be given".into());
        }
        if !self.python.packages.is_empty() && self.python.version.is_empty() {
            return fail("python.version is needed to choose wheels".into());
        }
        let paths = self.files.iter().map(|file| &file.path);
        let paths = paths.chain(self.symlinks.iter().map(|link| &link.path));
        let paths = paths.chain(self.volume.iter().map(|volume| &volume.path));
        let mut paths = paths.chain(self.npm.place.iter().chain(&self.python.place).map(|place| &place.to));
        match paths.find(|path| !is_tree_path(path)) {
            Some(path) => fail(format!("{path:?} must be absolute and free of '..'")),
            None => Ok(()),
        }
    }
}

fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(allowed)
        && !name.starts_with(['-', '.'])
}

fn is_tree_path(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "name = 'x'\ndescription = 'd'\ncategory = 'c'\ncpu = 1\nmemory_mib = 512\ndisk_gib = 8\n\
                           from = { debian = 'trixie' }\n";

    fn check(extra: &str, complaint: &str) {
        let error = Recipe::parse(&format!("{MINIMAL}{extra}"), Lock::default()).unwrap_err();
        assert!(error.to_string().contains(complaint), "{error}");
        assert_eq!(error.kind(), crate::ErrorKind::Recipe);
    }

    #[test]
    fn invalid_recipes_are_rejected_with_a_reason() {
        check("colour = 'red'", "colour");
        check("aliases = ['Upper']", "Upper");
        check("[[file]]\npath = '/etc/../../x'\ncontent = ''", "..");
        check("[[symlink]]\npath = 'relative'\ntarget = 'x'", "relative");
        check("[python]\npackages = ['numpy']", "python.version");
        check("[volume]\npath = 'data'\nsize_mb = 64", "data");
    }

    #[test]
    fn only_recipe_fields_that_affect_the_image_are_build_inputs() {
        let parse = |extra: &str| Recipe::parse(&format!("{MINIMAL}{extra}"), Lock::default()).unwrap();
        let plain = parse("").build_inputs();
        assert_eq!(plain, parse("warm = ['true']\naliases = ['y']").build_inputs());
        assert_eq!(plain, parse("[volume]\npath = '/data'\nsize_mb = 64").build_inputs());
        assert_ne!(plain, parse("run = ['true']").build_inputs());
        assert_ne!(plain, parse("[debian]\npackages = ['git']").build_inputs());
    }
}
