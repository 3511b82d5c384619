//! Lock files of recipes, with exact package versions: `templates/<name>/lock.toml` and
//! `npm-lock.json`.
//!
//! PyPI and npm never change a published file, so those pins are strict: another digest is an error. Debian's archive
//! drops a version when it publishes the next, so a Debian pin that is gone gives way to the current signed version,
//! and the build reports what drifted ([`crate::Locking::Strict`] makes that an error).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::error::ImageError;

/// One package version and its file's digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The version in the registry's notation.
    pub version: String,
    /// SHA-256 of the package file, in hexadecimal.
    pub sha256: String,
}

/// Packages by name.
pub type Pins = BTreeMap<String, Pin>;

/// Every package of one recipe, its parent's not included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Debian packages, dependencies included.
    #[serde(default)]
    pub debian: Pins,
    /// Wheels, dependencies included.
    #[serde(default)]
    pub python: Pins,
    /// npm's own lock file without addresses; empty when the recipe has no npm packages.
    #[serde(skip)]
    pub npm: String,
}

/// The guest kernel's package.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelLock {
    /// Package name, with the kernel's ABI number.
    pub package: String,
    /// Debian's version.
    pub version: String,
    /// SHA-256 of the package file, in hexadecimal.
    pub sha256: String,
}

impl Lock {
    /// Reads `lock.toml`; `npm` is the text of `npm-lock.json`, or empty.
    pub fn parse(text: &str, npm: &str) -> Result<Lock, ImageError> {
        let lock: Lock = toml::from_str(text).map_err(|error| ImageError::malformed("lock.toml", error))?;
        Ok(Lock { npm: npm.to_owned(), ..lock })
    }

    /// The text of `lock.toml`: one package a line, sorted, so that changes read well in review.
    pub fn to_toml(&self, name: &str) -> String {
        let mut text = format!("# Generated; do not edit. Regenerate: cargo xtask template lock {name}\n");
        for (table, pins) in [("debian", &self.debian), ("python", &self.python)] {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n[{table}]");
            for (package, pin) in pins {
                let _ = writeln!(
                    text,
                    "\"{package}\" = {{ version = \"{}\", sha256 = \"{}\" }}",
                    pin.version, pin.sha256
                );
            }
        }
        text
    }

    pub(crate) fn to_text(&self) -> String {
        format!("{}\n{}", self.to_toml(""), self.npm)
    }

    /// Preferences that make apt install the pinned versions, and continue if a pinned version is
    /// gone.
    pub(crate) fn apt_preferences(&self) -> String {
        let pin = |(name, pin): (&String, &Pin)| {
            format!("Package: {name}\nPin: version {}\nPin-Priority: 1001\n\n", pin.version)
        };
        self.debian.iter().map(pin).collect()
    }

    /// `name locked -> installed` for every Debian package that differs from the lock.
    pub(crate) fn drift(&self, installed: &Pins) -> Vec<String> {
        let differs = |(name, now): (&String, &Pin)| match self.debian.get(name) {
            Some(locked) if locked == now => None,
            Some(locked) if locked.version == now.version => {
                Some(format!("{name} {} has another digest", now.version))
            }
            Some(locked) => Some(format!("{name} {} -> {}", locked.version, now.version)),
            None => Some(format!("{name} (not locked) -> {}", now.version)),
        };
        installed.iter().filter_map(differs).collect()
    }
}

impl KernelLock {
    /// The text of `templates/kernel/lock.toml`.
    pub fn to_toml(&self) -> String {
        format!(
            "# The guest kernel's package. Regenerate: cargo xtask template lock kernel\n\
             package = \"{}\"\nversion = \"{}\"\nsha256 = \"{}\"\n",
            self.package, self.version, self.sha256
        )
    }
}

pub(crate) fn kernel_lock() -> &'static KernelLock {
    static LOCK: LazyLock<KernelLock> = LazyLock::new(|| {
        // Part of this program, and parsed by a test.
        toml::from_str(include_str!("../../../templates/kernel/lock.toml"))
            .expect("the kernel's lock is well formed")
    });
    &LOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(version: &str, sha256: &str) -> Pin {
        Pin { version: version.into(), sha256: sha256.into() }
    }

    #[test]
    fn an_image_lock_round_trips_through_toml() {
        let mut lock = Lock::default();
        lock.debian.insert("libstdc++6".into(), pin("14.2.0-19", "aa"));
        lock.python.insert("numpy".into(), pin("2.0", "bb"));
        assert_eq!(Lock::parse(&lock.to_toml("x"), "").unwrap(), lock);
    }

    #[test]
    fn the_kernel_lock_is_well_formed() {
        assert!(kernel_lock().package.starts_with("linux-image-"));
        assert_eq!(kernel_lock().sha256.len(), 64);
        let again: KernelLock = toml::from_str(&kernel_lock().to_toml()).unwrap();
        assert_eq!(&again, kernel_lock());
    }

    #[test]
    fn lock_drift_lists_both_versions() {
        let mut lock = Lock::default();
        lock.debian.insert("same".into(), pin("1", "aa"));
        lock.debian.insert("newer".into(), pin("1", "aa"));
        let installed = Pins::from([
            ("same".into(), pin("1", "aa")),
            ("newer".into(), pin("2", "bb")),
            ("extra".into(), pin("3", "cc")),
        ]);
        assert_eq!(lock.drift(&installed), ["extra (not locked) -> 3", "newer 1 -> 2"]);
    }

    #[test]
    fn apt_preferences_pin_each_version() {
        let mut lock = Lock::default();
        lock.debian.insert("git".into(), pin("1:2.47", "aa"));
        assert_eq!(lock.apt_preferences(), "Package: git\nPin: version 1:2.47\nPin-Priority: 1001\n\n");
    }
}
