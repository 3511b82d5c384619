//! Rules for the text of a file, line by line.

use std::path::Path;

use super::allowance;

/// Longest line of a source.
pub const COLUMNS_MAX: usize = 110;
/// Names that do not describe the contents.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "manager"];
/// Kinds of code.
pub const CODE: [&str; 5] = ["rs", "py", "ts", "tsx", "mjs"];
/// Lines of each kind that are still wider. The numbers only go down.
const WIDE_ALLOWED: [usize; CODE.len()] = [776, 709, 144, 8, 165];
/// The file with the numbers above.
const OWN_FILE: &str = "xtask/src/tidy/text.rs";

/// Every broken rule of one file, as `path:line: what`.
pub fn problems(path: &Path, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let is_code = kind_of(path).is_some();
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

/// The kind of code in a file, as its place in [`CODE`].
pub fn kind_of(path: &Path) -> Option<usize> {
    let kind = path.extension()?;
    CODE.iter().position(|code| kind == *code)
}

/// Lines that are too wide so far, by kind of code.
#[derive(Debug, Default)]
pub struct Wide([Vec<String>; CODE.len()]);

impl Wide {
    /// Searches a source for them.
    pub fn read(&mut self, path: &Path, text: &str) {
        let Some(found) = kind_of(path).and_then(|kind| self.0.get_mut(kind)) else { return };
        let lines = text.lines().zip(1..).filter(|(line, _)| columns(line) > COLUMNS_MAX);
        found.extend(lines.map(|(_, number): (_, usize)| format!("{}:{number}", path.display())));
    }

    /// A problem for each kind of code that has more of them than it had, or fewer.
    pub fn problems(&self) -> Vec<String> {
        let problem = |((kind, allowed), found): ((&&str, usize), &Vec<String>)| {
            // Comments of Rust can be wrapped.
            let hint = if *kind == "rs" { " (`cargo xtask tidy --wrap` wraps comments)" } else { "" };
            let rule = format!("lines of .{kind} files over {COLUMNS_MAX} columns{hint}");
            allowance::problem(&rule, allowed, found, OWN_FILE)
        };
        CODE.iter().zip(WIDE_ALLOWED).zip(&self.0).filter_map(problem).collect()
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
    fn text_rules_are_enforced() {
        check("a/b.rs", "fn main() {}\n", 0);
        check("a/utils.rs", "", 1);
        check("a/b.rs", &format!("// {}: later\n", unfinished()[0]), 1);
        check("a/utils.md", "", 0);
    }

    #[test]
    fn width_is_counted_in_characters() {
        let mut wide = Wide::default();
        wide.read(Path::new("a.rs"), &format!("{}\n{}\n", "ä".repeat(110), "x".repeat(111)));
        wide.read(Path::new("a.tsx"), &"x".repeat(111));
        wide.read(Path::new("a.md"), &"x".repeat(111));
        assert_eq!(wide.0.concat(), ["a.rs:2", "a.tsx:1"]);
    }
}
