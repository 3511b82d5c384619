//! The configuration file, to change it. Keys of other programs in it are preserved.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::config::read_file;
use crate::error::{ClientError, Result};

/// Settings and their other spellings.
const SPELLINGS: [&[&str]; 2] = [&["api_url", "apiUrl"], &["token", "api_key", "apiKey"]];

/// The contents of a configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    object: Map<String, Value>,
}

impl ConfigFile {
    /// Reads the file; empty if it does not exist.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), object: read_file(path)? })
    }

    /// Sets a value.
    pub fn set(&mut self, name: &str, value: &str) {
        self.unset(name);
        self.object.insert(name.to_owned(), Value::from(value));
    }

    /// Removes a value, in every spelling.
    pub fn unset(&mut self, name: &str) {
        let spellings = SPELLINGS.into_iter().find(|names| names.contains(&name)).unwrap_or_default();
        self.object.retain(|key, _| key != name && !spellings.contains(&key.as_str()));
    }

    /// Writes the file, for its owner alone: it contains a key. Replaced as a whole, so that no reader
    /// sees half of it.
    pub fn write(&self) -> Result<()> {
        let failed = |error: std::io::Error| ClientError::BadConfig {
            path: self.path.clone(),
            detail: format!("cannot write: {error}"),
        };
        let dir = self.path.parent().unwrap_or(Path::new("."));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let fresh = dir.join(format!(".config.json.{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
            let text = serde_json::to_string_pretty(&Value::Object(self.object.clone()))?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            std::fs::rename(&fresh, &self.path)
        };
        write().map_err(failed)
    }
}
