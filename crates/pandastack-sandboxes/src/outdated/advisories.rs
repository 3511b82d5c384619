//! Advisories: an operator's list of versions that must not be used.
//!
//! ```toml
//! [[advisory]]
//! id = "KERNEL-2026-1"
//! component = "kernel"      # or "guest", "engine"
//! below = "6.1.0-37"
//! severity = "high"
//! note = "local privilege escalation"
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use pandastack_types::api::{AdvisoryMatch, Component};
use pandastack_types::chain;
use serde::Deserialize;

/// Largest file of advisories. A larger one is refused.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// An advisory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advisory {
    /// ID, such as `KERNEL-2026-1`.
    pub id: String,
    /// The component.
    pub component: Component,
    /// First version that is good.
    pub below: String,
    /// For engines: the beginning of the engine's name. Default: every engine.
    pub engine: Option<String>,
    /// Severity.
    pub severity: Option<String>,
    /// Note for owners.
    pub note: Option<String>,
}

impl Advisory {
    /// The advisory, as shown next to a component that it affects.
    pub fn shown(&self) -> AdvisoryMatch {
        AdvisoryMatch { id: self.id.clone(), severity: self.severity.clone(), note: self.note.clone() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    advisory: Vec<Advisory>,
}

/// Reason why advisories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdvisoryError {
    /// The file cannot be read.
    #[error("cannot read the advisories in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The file is too large.
    #[error("the advisories in {} are larger than {} bytes", .0.display(), FILE_BYTES_MAX)]
    TooLarge(PathBuf),
    /// The file has an error.
    #[error("invalid advisories in {}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Reads the advisories in a text.
fn parse(text: &str) -> Result<Vec<Advisory>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    for Advisory { id, component, below, engine, .. } in &file.advisory {
        if id.trim().is_empty() {
            return Err("an advisory has an empty `id`".to_owned());
        }
        if !below.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(format!("`below = {below:?}` of advisory `{id}` is not a version"));
        }
        if engine.is_some() && *component != Component::Engine {
            return Err(format!("advisory `{id}` names an engine, but its component is not `engine`"));
        }
    }
    Ok(file.advisory)
}

/// A file of advisories. It is read again when it changes; while it cannot be read, the previous
/// advisories stay in effect.
#[derive(Debug)]
pub struct AdvisoryFile {
    path: PathBuf,
    last: Mutex<Reading>,
}

#[derive(Debug, Clone)]
struct Reading {
    stamp: Stamp,
    advisories: Arc<[Advisory]>,
}

/// A changed file has another one.
type Stamp = (Option<SystemTime>, u64);

impl AdvisoryFile {
    /// Reads the file.
    pub fn open(path: &Path) -> Result<Self, AdvisoryError> {
        Ok(Self { path: path.to_owned(), last: Mutex::new(read(path)?) })
    }

    /// The advisories now.
    pub fn current(&self) -> Arc<[Advisory]> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp(&self.path).ok() != Some(last.stamp) {
            match read(&self.path) {
                Ok(reading) => *last = reading,
                Err(error) => tracing::warn!(error = %chain(&error), "keeping the previous advisories"),
            }
        }
        last.advisories.clone()
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = std::fs::metadata(path)?;
    Ok((meta.modified().ok(), meta.len()))
}

fn read(path: &Path) -> Result<Reading, AdvisoryError> {
    let unreadable = |source| AdvisoryError::Read { path: path.to_owned(), source };
    let stamp = stamp(path).map_err(unreadable)?;
    if stamp.1 > FILE_BYTES_MAX {
        return Err(AdvisoryError::TooLarge(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let advisories =
        parse(&text).map_err(|reason| AdvisoryError::Invalid { path: path.to_owned(), reason })?;
    Ok(Reading { stamp, advisories: advisories.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "[[advisory]]\nid = 'A-1'\ncomponent = 'kernel'\nbelow = '6.1.0-37'\nseverity = 'high'\n";

    #[test]
    fn malformed_advisories_are_refused() {
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse(ONE).unwrap()[0].severity.as_deref(), Some("high"));
        for (wrong, names) in [
            ("[[advisory]]\nid = 'A-1'\ncomponent = 'kernel'\n", "below"),
            (ONE.replace("kernel", "bios").as_str(), "bios"),
            (ONE.replace("6.1.0-37", "all").as_str(), "not a version"),
            (ONE.replace("A-1", " ").as_str(), "empty `id`"),
            (format!("{ONE}engine = 'qemu'\n").as_str(), "names an engine"),
            (format!("{ONE}sverity = 'low'\n").as_str(), "sverity"),
            ("advisory = 7", "advisory"),
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains(names) || wrong == "advisory = 7", "{refused}");
        }
    }

    #[test]
    fn a_changed_advisory_file_is_reloaded_unless_malformed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), ONE).unwrap();
        let advisories = AdvisoryFile::open(file.path()).unwrap();
        assert_eq!(advisories.current().len(), 1);
        std::fs::write(file.path(), format!("{ONE}{}", ONE.replace("A-1", "A-2"))).unwrap();
        assert_eq!(advisories.current().len(), 2);
        std::fs::write(file.path(), "[[advisory]]").unwrap();
        assert_eq!(advisories.current().len(), 2);
        assert!(AdvisoryFile::open(file.path()).is_err());
        std::fs::remove_file(file.path()).unwrap();
        assert_eq!(advisories.current().len(), 2);
    }
}
