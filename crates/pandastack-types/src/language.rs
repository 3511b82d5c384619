//! Languages of code contexts: the one table of their names, programs and templates.

use crate::api::CONTEXT_DEFAULT;
use crate::{Error, Result};

/// Characters of an unknown language that an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// A language that code contexts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Python 3, the default.
    Python,
    /// JavaScript, on Node.js.
    JavaScript,
    /// TypeScript without type checks, on Node.js.
    TypeScript,
    /// Bash.
    Bash,
    /// R.
    R,
    /// Java, by JShell.
    Java,
}

/// A row of the table.
struct Row {
    language: Language,
    /// Name in requests, answers and the ids of default contexts.
    name: &'static str,
    aliases: &'static [&'static str],
    /// Name in messages.
    title: &'static str,
    /// What a sandbox needs for it, found by `PATH`.
    programs: &'static [&'static str],
    /// Templates of the product that have it.
    templates: &'static str,
}

const BASE: &str = "`base` or `code-interpreter`";
const INTERPRETER: &str = "`code-interpreter`";

#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row { language: Language::Python, name: "python", aliases: &["python3", "py"],
          title: "Python", programs: &["python3"], templates: BASE },
    Row { language: Language::JavaScript, name: "javascript", aliases: &["js"],
          title: "JavaScript", programs: &["node"], templates: BASE },
    Row { language: Language::TypeScript, name: "typescript", aliases: &["ts"],
          title: "TypeScript", programs: &["node"], templates: BASE },
    Row { language: Language::Bash, name: "bash", aliases: &["sh", "shell"],
          title: "Bash", programs: &["bash", "python3"], templates: BASE },
    Row { language: Language::R, name: "r", aliases: &[],
          title: "R", programs: &["R", "python3"], templates: INTERPRETER },
    Row { language: Language::Java, name: "java", aliases: &[],
          title: "Java", programs: &["javac", "python3"], templates: INTERPRETER },
];

impl Language {
    /// Every language, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.language)
    }

    fn row(self) -> &'static Row {
        // The first row stands in for a language without one; a test finds those.
        TABLE.iter().find(|row| row.language == self).unwrap_or(&TABLE[0])
    }

    /// The language of that name or alias. Without one, or with an empty one, it is Python.
    pub fn find(given: Option<&str>) -> Result<Self> {
        let given = given.unwrap_or_default().to_ascii_lowercase();
        let named =
            |row: &&Row| given.is_empty() || row.name == given || row.aliases.contains(&given.as_str());
        TABLE.iter().find(named).map(|row| row.language).ok_or_else(|| {
            let shown: String = given.chars().take(SHOWN_CHARS_MAX).collect();
            let known: Vec<String> = TABLE.iter().map(|row| format!("`{}`", row.name)).collect();
            Error::bad_request(format!("language `{shown}` is not supported; use {}", known.join(", ")))
        })
    }

    /// Name in requests and answers.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Programs that a sandbox needs for it, found by `PATH`.
    pub fn programs(self) -> &'static [&'static str] {
        self.row().programs
    }

    /// The error for a sandbox that does not have `program`.
    pub fn missing(self, program: &str) -> Error {
        let Row { title, templates, .. } = self.row();
        Error::bad_request(format!(
            "{title} needs `{program}`, which is not in the sandbox; use the template {templates}"
        ))
    }

    /// Id of the context that runs code of this language when none is named. Its first run creates it.
    pub fn default_context(self) -> String {
        match self {
            Language::Python => CONTEXT_DEFAULT.to_owned(),
            other => format!("{CONTEXT_DEFAULT}-{}", other.name()),
        }
    }

    /// The language whose default context has that id.
    pub fn of_default_context(id: &str) -> Option<Self> {
        Self::all().find(|language| language.default_context() == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_one_row_and_its_names_are_its_own() {
        let mut names: Vec<&str> =
            TABLE.iter().flat_map(|row| row.aliases.iter().copied().chain([row.name])).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for (row, language) in TABLE.iter().zip(Language::all()) {
            assert_eq!((row.name, Language::find(Some(row.name)).ok()), (language.name(), Some(language)));
            assert!(row.aliases.iter().all(|alias| Language::find(Some(alias)).ok() == Some(language)));
            assert!(!row.programs.is_empty());
        }
    }

    #[test]
    fn unsupported_languages_are_rejected() {
        for python in [None, Some(""), Some("Python"), Some("py")] {
            assert_eq!(Language::find(python).unwrap(), Language::Python);
        }
        let refused = Language::find(Some("cobol")).unwrap_err().message;
        assert!(refused.contains("`cobol`") && refused.contains("`typescript`"), "{refused}");
        assert!(Language::find(Some(&"x".repeat(1000))).unwrap_err().message.len() < 300);
    }

    #[test]
    fn every_language_has_a_default_context() {
        for language in Language::all() {
            assert_eq!(Language::of_default_context(&language.default_context()), Some(language));
        }
        assert_eq!(Language::of_default_context(CONTEXT_DEFAULT), Some(Language::Python));
        assert_eq!(Language::of_default_context("default-js"), None);
    }
}
