//! Rules for the text of a file, line by line.

use std::path::Path;

use super::allowance;

/// Longer source files want to be two.
const LINES_MAX: usize = 600;
/// Longest line of a Rust source.
pub const COLUMNS_MAX: usize = 110;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "manager"];
/// Lines of Rust sources that are still wider. The number only goes down.
const WIDE_ALLOWED: usize = 1485;
/// The file with the number above.
const OWN_FILE: &str = "xtask/src/tidy/text.rs";

/// Every broken rule of one file, as `path:line: what`.
pub fn problems(path: &Path, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let is_code =
        path.extension().is_some_and(|kind| ["rs", "py", "ts", "mjs"].iter().any(|code| kind == *code));
    let lines = text.lines().count();
    if is_code && lines > LINES_MAX && !text.contains("@generated") {
        problems.push(format!("{}:{lines}: longer than {LINES_MAX} lines; split it", path.display()));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if is_code && EMPTY_NAMES.contains(&stem) {
        problems.push(format!("{}:1: `{stem}` says nothing; name the one thing in it", path.display()));
    }
    for (line, number) in text.lines().zip(1..) {
        if let Some(word) = unfinished().into_iter().find(|word| line.contains(word.as_str())) {
            problems.push(format!("{}:{number}: `{word}` does not belong here", path.display()));
        }
    }
    problems
}

/// Marks of unfinished work. Put together here, so that this file does not contain them.
fn unfinished() -> [String; 4] {
    [("TO", "DO"), ("FIX", "ME"), ("XX", "X:"), ("HA", "CK:")].map(|(a, b)| format!("{a}{b}"))
}

/// The width of a line.
pub fn columns(line: &str) -> usize {
    line.chars().count()
}

/// Lines that are too wide so far.
#[derive(Debug, Default)]
pub struct Wide(Vec<String>);

impl Wide {
    /// Looks for them in a Rust source.
    pub fn read(&mut self, path: &Path, text: &str) {
        let lines = text.lines().zip(1..).filter(|(line, _)| columns(line) > COLUMNS_MAX);
        self.0.extend(lines.map(|(_, number): (_, usize)| format!("{}:{number}", path.display())));
    }

    /// The problem, if there are more than there were, or fewer.
    pub fn problem(&self) -> Option<String> {
        let rule = format!("lines over {COLUMNS_MAX} columns (`cargo xtask tidy --wrap` wraps comments)");
        allowance::judge(&rule, WIDE_ALLOWED, &self.0, OWN_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expect: usize) {
        let problems = problems(Path::new(path), text);
        assert_eq!(problems.len(), expect, "{problems:?}");
    }

    #[test]
    fn rules_are_checked() {
        check("a/b.rs", "fn main() {}\n", 0);
        check("a/utils.rs", "", 1);
        check("a/b.rs", &format!("// {}: later\n", unfinished()[0]), 1);
        check("a/b.rs", &"x\n".repeat(601), 1);
        check("a/b.md", &"x\n".repeat(601), 0);
    }

    #[test]
    fn width_is_counted_in_characters() {
        let mut wide = Wide::default();
        wide.read(Path::new("a.rs"), &format!("{}\n{}\n", "ä".repeat(110), "x".repeat(111)));
        assert_eq!(wide.0, ["a.rs:2"]);
    }
}
