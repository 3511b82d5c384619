//! `cargo xtask tidy`: formatting, and the house rules that no compiler checks.

mod advisories;
mod allowance;
mod causes;
mod circles;
mod claims;
mod dependencies;
mod docs;
mod layers;
mod licence;
mod lints;
mod long_files;
mod phrases;
mod text;
mod wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

pub use self::advisories::Advisories;
use crate::program::{self, cargo};
use crate::{errors, tree};

/// Kinds of files that people write.
const SOURCES: [&str; 8] = ["rs", "py", "ts", "tsx", "mjs", "toml", "md", "sh"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only look, do not format
    #[arg(long)]
    check: bool,
    /// Wrap comments that are too wide, in files below PATH
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "", conflicts_with = "check")]
    wrap: Option<PathBuf>,
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
    if let Some(below) = &args.wrap {
        wrap_comments(below)?;
    }
    program::run(cargo(if args.check { &["fmt", "--all", "--check"] } else { &["fmt", "--all"] }))?;
    let mut problems = problems()?;
    match advisories()? {
        Advisories::Clean => {}
        Advisories::Found(found) => problems.push(found),
        Advisories::Skipped(reason) => eprintln!("skipped: {reason}"),
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Published advisories about what we link.
pub fn advisories() -> Result<Advisories> {
    advisories::check()
}

/// Every broken rule, as `path:line: what` where it is in one place.
pub fn problems() -> Result<Vec<String>> {
    let (mut problems, mut wide) = (Vec::new(), text::Wide::default());
    let (mut phrases, mut docs) = (phrases::Phrases::default(), docs::Docs::default());
    let (mut tests, mut long) = (claims::Tests::default(), long_files::LongFiles::default());
    for path in sources()? {
        let text = read(&path)?;
        problems.extend(text::problems(&path, &text));
        phrases.read(&path, &text);
        tests.read(&text);
        wide.read(&path, &text);
        long.read(&path, &text);
        if is_rust(&path) {
            problems.extend(causes::problems(&path, &text)?);
        }
        if path.extension().is_some_and(|kind| kind == "md") {
            docs.read(&path, &text);
        }
    }
    problems.extend(wide.problems());
    problems.extend(long.problems());
    problems.extend(tests.problems(&read(Path::new(claims::PAGE))?));
    problems.extend(phrases.problems());
    problems.extend(docs.problems());
    problems.extend(circles::problems()?);
    problems.extend(layers::problems()?);
    problems.extend(dependencies::problems()?);
    problems.extend(lints::problems()?);
    problems.extend(errors::problem()?);
    Ok(problems)
}

fn wrap_comments(below: &Path) -> Result<()> {
    for path in sources()?.iter().filter(|path| is_rust(path) && path.starts_with(below)) {
        let text = read(path)?;
        let wrapped = wrap::comments(&text).with_context(|| format!("wrap {}", path.display()))?;
        if wrapped != text {
            std::fs::write(tree::root().join(path), wrapped)
                .with_context(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>> {
    let is_source =
        |path: &PathBuf| path.extension().is_some_and(|kind| SOURCES.iter().any(|source| kind == *source));
    Ok(tree::files()?.into_iter().filter(is_source).collect())
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "rs")
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {}", path.display()))
}
