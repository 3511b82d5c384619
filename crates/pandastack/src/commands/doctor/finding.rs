//! The outcome of a check.

use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check passed.
    Ok,
    /// Works with limitations.
    Warn,
    /// Sandboxes will not run.
    Fail,
}

/// Outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
    /// Description of the result.
    pub detail: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// A check that passed.
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    /// A check that found a limitation.
    pub fn warn(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name: name.to_owned(), verdict: Verdict::Warn, detail: detail.into(), remedy }
    }

    /// A check that failed.
    pub fn fail(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, detail, remedy) }
    }
}
