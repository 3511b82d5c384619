//! The release in the making: its version, its time, and where its files go.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{program, read};
use crate::tree::{pandastack, root, target_dir};

/// A release in the making.
pub struct Release {
    pub version: String,
    /// Seconds since 1970 of the commit.
    pub epoch: String,
    /// Directory of finished files.
    pub out: PathBuf,
    /// Directory of files in the making.
    pub work: PathBuf,
}

impl Release {
    /// Empties the directories.
    pub fn begin(out: Option<PathBuf>) -> Result<Self> {
        let mut commit_time = program("git");
        commit_time.args(["log", "-1", "--format=%ct"]);
        let epoch = read(commit_time)?.trim().to_owned();
        let out = out.unwrap_or_else(|| target_dir().join("dist"));
        let work = target_dir().join("dist-work");
        for dir in [&out, &work] {
            if dir.exists() {
                std::fs::remove_dir_all(dir).with_context(|| format!("delete {}", dir.display()))?;
            }
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(Self { version: workspace_version()?, epoch, out, work })
    }

    /// A program whose time stamps are the commit's.
    pub fn program(&self, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = program(name);
        command.env("SOURCE_DATE_EPOCH", &self.epoch).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        command
    }
}

/// The program that is packaged.
pub fn product() -> PathBuf {
    pandastack()
}

/// Version in the workspace's manifest.
fn workspace_version() -> Result<String> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).context("read Cargo.toml")?;
    let manifest: toml::Table = toml::from_str(&text).context("parse Cargo.toml")?;
    let version = manifest.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).context("find the version in Cargo.toml")
}
