//! `cargo xtask tidy`: formatting, and the house rules that no compiler checks.

mod circles;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::program::{self, cargo};
use crate::tree;

/// Longer source files want to be two.
const LINES_MAX: usize = 600;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "manager"];
/// Kinds of files that people write.
const SOURCES: [&str; 7] = ["rs", "py", "ts", "mjs", "toml", "md", "sh"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only look, do not format
    #[arg(long)]
    check: bool,
    /// Show the largest import circle of each crate, and the edges to cut
    #[arg(long)]
    circles: bool,
}

/// Carries it out.
pub fn run(args: Args) -> Result<ExitCode> {
    if args.circles {
        print!("{}", circles::report()?);
        return Ok(ExitCode::SUCCESS);
    }
    program::run(cargo(if args.check { &["fmt", "--all", "--check"] } else { &["fmt", "--all"] }))?;
    let problems = problems()?;
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every broken rule, as `path:line: what`.
pub fn problems() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in tree::files()? {
        if !path.extension().is_some_and(|kind| SOURCES.iter().any(|source| kind == *source)) {
            continue;
        }
        let text = std::fs::read_to_string(tree::root().join(&path));
        let text = text.with_context(|| format!("read {}", path.display()))?;
        problems.extend(problems_of(&path, &text));
    }
    problems.extend(circles::problems()?);
    Ok(problems)
}

fn problems_of(path: &Path, text: &str) -> Vec<String> {
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
    for (number, line) in text.lines().enumerate() {
        let forbidden = forbidden().into_iter().find(|word| line.contains(word.as_str()));
        if let Some(word) = forbidden {
            problems.push(format!("{}:{}: `{word}` does not belong here", path.display(), number + 1));
        }
    }
    problems
}

/// Marks of unfinished work. Put together here, so that this file does not contain them.
fn forbidden() -> [String; 4] {
    [("TO", "DO"), ("FIX", "ME"), ("XX", "X:"), ("HA", "CK:")].map(|(a, b)| format!("{a}{b}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expect: usize) {
        let problems = problems_of(Path::new(path), text);
        assert_eq!(problems.len(), expect, "{problems:?}");
    }

    #[test]
    fn rules_are_checked() {
        check("a/b.rs", "fn main() {}\n", 0);
        check("a/utils.rs", "", 1);
        check("a/b.rs", &format!("// {}: later\n", forbidden()[0]), 1);
        check("a/b.rs", &"x\n".repeat(601), 1);
        check("a/b.md", &"x\n".repeat(601), 0);
    }
}
