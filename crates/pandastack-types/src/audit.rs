//! The hash chain of the audit log: every entry carries the hash of the one before, so that a changed or
//! missing entry is noticed.
//!
//! The hash of an entry is SHA-256, in lower-case hexadecimal, over these fields as netstrings
//! (`<length>:<bytes>,`), in this order: the previous hash, workspace, time in microseconds since 1970, key
//! prefix, key label, method, route, path, sandbox (empty for none), status, request ID, milliseconds. The
//! chain covers the whole installation, in the order of ids.
//!
//! An attacker who can rewrite the whole database can also compute a new chain. A copy of the last
//! hash elsewhere, such as in an exported log, shows that.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::WorkspaceId;
use crate::api::AuditEntry;

/// An entry with its place in the chain, as the export writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Workspace of the key that called.
    pub workspace: WorkspaceId,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// Hash of the entry before; empty for the first.
    pub previous: String,
    /// Hash of this entry.
    pub hash: String,
}

/// The hash of an entry that follows `previous`. Its id is not part of it: the store assigns that.
pub fn hash(previous: &str, workspace: &WorkspaceId, entry: &AuditEntry) -> String {
    let mut digest = Sha256::new();
    let mut field = |text: &str| {
        digest.update(format!("{}:", text.len()));
        digest.update(text);
        digest.update(",");
    };
    field(previous);
    field(workspace.as_str());
    field(&entry.at.as_microsecond().to_string());
    field(&entry.token_prefix);
    field(&entry.token_label);
    field(&entry.method);
    field(&entry.route);
    field(&entry.path);
    field(entry.sandbox_id.as_ref().map_or("", |id| id.as_str()));
    field(&entry.status.to_string());
    field(&entry.request_id);
    field(&entry.took_ms.to_string());
    HEXLOWER.encode(&digest.finalize())
}

/// How a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainBreak {
    /// The content of an entry does not have its hash.
    #[error("entry {id} was changed: its content does not match its hash")]
    Changed {
        /// The entry.
        id: i64,
    },
    /// The previous entry is not the one that this entry was written after.
    #[error("entries before entry {id} are missing or were replaced")]
    Gap {
        /// The entry.
        id: i64,
    },
    /// The last entry is not the one that was written last: entries at the end are missing.
    #[error("entries at the end are missing: no entry has the hash {head}")]
    Cut {
        /// Hash of the entry that was written last.
        head: String,
    },
}

/// Checks a chain, entry by entry.
#[derive(Debug, Clone)]
pub struct ChainCheck {
    last: Option<String>,
    checked: u64,
}

impl ChainCheck {
    /// Starts after an entry with this hash; `None` if the first entry may follow any.
    pub fn after(hash: Option<String>) -> Self {
        Self { last: hash, checked: 0 }
    }

    /// The next entry.
    pub fn check(&mut self, line: &AuditLine) -> Result<(), ChainBreak> {
        let id = line.entry.id;
        if self.last.as_ref().is_some_and(|last| *last != line.previous) {
            return Err(ChainBreak::Gap { id });
        }
        if hash(&line.previous, &line.workspace, &line.entry) != line.hash {
            return Err(ChainBreak::Changed { id });
        }
        self.last = Some(line.hash.clone());
        self.checked += 1;
        Ok(())
    }

    /// Hash of the entry checked last.
    pub fn head(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Number of entries checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: i64, previous: &str) -> AuditLine {
        let entry = AuditEntry {
            id,
            at: jiff::Timestamp::from_microsecond(1_700_000_000_000_000 + id).unwrap(),
            token_prefix: "pds_12345678".to_owned(),
            token_label: "ci".to_owned(),
            method: "POST".to_owned(),
            route: "/v1/sandboxes".to_owned(),
            path: "/v1/sandboxes".to_owned(),
            sandbox_id: None,
            status: 201,
            request_id: "r".to_owned(),
            took_ms: 5,
        };
        let workspace = WorkspaceId::default_workspace();
        let hash = hash(previous, &workspace, &entry);
        AuditLine { workspace, entry, previous: previous.to_owned(), hash }
    }

    fn chain(count: i64) -> Vec<AuditLine> {
        let mut lines: Vec<AuditLine> = Vec::new();
        for id in 1..=count {
            let previous = lines.last().map_or_else(String::new, |last| last.hash.clone());
            lines.push(line(id, &previous));
        }
        lines
    }

    fn check(lines: &[AuditLine]) -> Result<(), ChainBreak> {
        let mut check = ChainCheck::after(Some(String::new()));
        lines.iter().try_for_each(|line| check.check(line))
    }

    #[test]
    fn the_audit_hash_matches_the_documented_format() {
        // printf '0:,7:default,16:1700000000000001,12:pds_12345678,2:ci,4:POST,13:/v1/sandboxes,13:/v1/sandboxes,\
        // 0:,3:201,1:r,1:5,' | sha256sum
        assert_eq!(line(1, "").hash, "a203a8bcfe47912f540312d3a84155154e86e683c17100f1bcea7876c90b7be3");
    }

    #[test]
    fn changed_removed_and_moved_audit_entries_are_detected() {
        let lines = chain(4);
        assert_eq!(check(&lines), Ok(()));
        let mut changed = lines.clone();
        changed[2].entry.status = 500;
        assert_eq!(check(&changed), Err(ChainBreak::Changed { id: 3 }));
        let mut removed = lines.clone();
        removed.remove(1);
        assert_eq!(check(&removed), Err(ChainBreak::Gap { id: 3 }));
        let mut moved = lines;
        moved.swap(1, 2);
        assert_eq!(check(&moved), Err(ChainBreak::Gap { id: 3 }));
    }

    #[test]
    fn an_audit_line_round_trips_through_json() {
        let line = line(7, "abc");
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<AuditLine>(&text).unwrap(), line);
    }
}
