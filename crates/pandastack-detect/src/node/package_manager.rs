//! The package manager of a Node app.

use super::package::Package;
use crate::view::View;

/// A package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackageManagerKind {
    Npm,
    Pnpm,
    Yarn,
    Berry,
    Bun,
}

impl PackageManagerKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            PackageManagerKind::Npm => "npm",
            PackageManagerKind::Pnpm => "pnpm",
            PackageManagerKind::Yarn => "yarn",
            PackageManagerKind::Berry => "yarn (berry)",
            PackageManagerKind::Bun => "bun",
        }
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            PackageManagerKind::Npm => "npm",
            PackageManagerKind::Pnpm => "pnpm",
            PackageManagerKind::Yarn | PackageManagerKind::Berry => "yarn",
            PackageManagerKind::Bun => "bun",
        }
    }

    /// Returns whether a package that is a directory of the source (`file:`) is copied. npm links to
    /// it instead.
    pub(super) fn copies_directories(self) -> bool {
        self != PackageManagerKind::Npm
    }

    /// Runs a program of the installed packages.
    pub(super) fn runner(self) -> &'static str {
        match self {
            PackageManagerKind::Npm => "npx --no-install",
            PackageManagerKind::Pnpm => "pnpm exec",
            PackageManagerKind::Yarn | PackageManagerKind::Berry => "yarn",
            PackageManagerKind::Bun => "bunx",
        }
    }
}

/// The package manager of a source, and how it is used.
pub(super) struct PackageManager {
    pub(super) kind: PackageManagerKind,
    /// Version requested by `packageManager`.
    version: Option<String>,
    pub(super) reason: String,
    locked: bool,
}

impl PackageManager {
    pub(super) fn of(view: &View, package: &Package) -> Self {
        let locked = view
            .first(&[
                "pnpm-lock.yaml",
                "bun.lock",
                "bun.lockb",
                "yarn.lock",
                "package-lock.json",
                "npm-shrinkwrap.json",
            ])
            .is_some();
        let named = package.package_manager.as_deref().and_then(|text| text.split_once('@'));
        if let Some((name, version)) = named {
            let version = version.split('+').next().unwrap_or(version).to_owned();
            let kind = match name {
                "pnpm" => Some(PackageManagerKind::Pnpm),
                "bun" => Some(PackageManagerKind::Bun),
                "npm" => Some(PackageManagerKind::Npm),
                "yarn" if version.starts_with("1.") => Some(PackageManagerKind::Yarn),
                "yarn" => Some(PackageManagerKind::Berry),
                _ => None,
            };
            if let Some(kind) = kind {
                let reason = format!("package.json says packageManager {name}@{version}");
                return Self { kind, version: Some(version), reason, locked };
            }
        }
        let by_file = [
            ("pnpm-lock.yaml", PackageManagerKind::Pnpm),
            ("bun.lock", PackageManagerKind::Bun),
            ("bun.lockb", PackageManagerKind::Bun),
            (".yarnrc.yml", PackageManagerKind::Berry),
            ("yarn.lock", PackageManagerKind::Yarn),
        ];
        let found = by_file.iter().find(|(file, _)| view.has(file));
        let (kind, reason) = match found {
            Some((file, kind)) => (*kind, format!("there is {file}")),
            None => (PackageManagerKind::Npm, "no other package manager is named".to_owned()),
        };
        Self { kind, version: None, reason, locked }
    }

    /// Development dependencies are installed too: builds need them.
    pub(super) fn install(&self) -> String {
        let version = |default: &str| self.version.clone().unwrap_or_else(|| default.to_owned());
        match (self.kind, self.locked) {
            (PackageManagerKind::Npm, true) => "npm ci --include=dev --no-audit --no-fund".to_owned(),
            (PackageManagerKind::Npm, false) => "npm install --include=dev --no-audit --no-fund".to_owned(),
            (PackageManagerKind::Pnpm, locked) => {
                let frozen = if locked { " --frozen-lockfile" } else { "" };
                format!(
                    "npm install --global --no-audit --no-fund pnpm@{} && pnpm install --prod=false{frozen}",
                    version("10")
                )
            }
            (PackageManagerKind::Yarn, locked) => {
                let frozen = if locked { " --frozen-lockfile" } else { "" };
                format!(
                    "npm install --global --no-audit --no-fund yarn@{} && yarn install --production=false{frozen}",
                    version("1")
                )
            }
            (PackageManagerKind::Berry, locked) => {
                let frozen = if locked { " --immutable" } else { "" };
                format!(
                    "npm install --global --no-audit --no-fund @yarnpkg/cli-dist@{} && yarn install{frozen}",
                    version("4")
                )
            }
            (PackageManagerKind::Bun, locked) => {
                format!("bun install{}", if locked { " --frozen-lockfile" } else { "" })
            }
        }
    }

    pub(super) fn locks(&self, view: &View) -> Vec<String> {
        let names: &[&str] = match self.kind {
            PackageManagerKind::Npm => &["package-lock.json", "npm-shrinkwrap.json"],
            PackageManagerKind::Pnpm => &["pnpm-lock.yaml"],
            PackageManagerKind::Yarn => &["yarn.lock"],
            PackageManagerKind::Berry => &["yarn.lock", ".yarnrc.yml"],
            PackageManagerKind::Bun => &["bun.lock", "bun.lockb"],
        };
        let there = names.iter().filter(|name| view.has(name)).map(|name| (*name).to_owned());
        // package.json too: its scripts run at install time, and without a lock it is the lock.
        ["package.json".to_owned()].into_iter().chain(there).collect()
    }
}
