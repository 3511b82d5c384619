//! Rules for documentation pages that no reader of one page would notice.
//!
//! - A page is reachable from the index by links.
//! - A relative link leads to a file, and its anchor to a heading there.
//! - A page for users opens with a code block.
//! - A code block in a programming language either runs in `tests/e2e/python/test_docs.py`, or its
//!   fence says why not: `no-test: reason`, or `tested-by: path` of the test that covers it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::tree;

/// Pages from which readers start.
const INDEXES: [&str; 2] = ["README.md", "docs/README.md"];
/// Pages whose blocks are checked: what `tests/e2e/python/doc_pages.py` calls `PAGES`.
const CHECKED: [&str; 4] = ["README.md", "docs", "sdk/python/README.md", "sdk/typescript/README.md"];
/// Folders whose pages open with a code block, at this line at the latest.
const OPENING: [&str; 4] = ["docs/tutorials", "docs/how-to", "docs/reference", "docs/explanation"];
const OPENING_LINE_MAX: usize = 8;
/// Languages that run in a session of a page.
const RUNS: [&str; 2] = ["sh", "python"];
/// Languages of output and data, which cannot run.
const DATA: [&str; 3] = ["text", "json", "toml"];

/// Pages read so far.
#[derive(Debug, Default)]
pub struct Docs(BTreeMap<PathBuf, Page>);

#[derive(Debug, Default)]
struct Page {
    /// Line and target of each link.
    links: Vec<(usize, String)>,
    headings: BTreeSet<String>,
    /// Line and info string of each fence that opens a block.
    fences: Vec<(usize, String)>,
}

impl Docs {
    /// Takes a page in.
    pub fn read(&mut self, path: &Path, text: &str) {
        self.0.insert(path.to_owned(), Page::parse(text));
    }

    /// Every broken rule.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.unreachable();
        for (path, page) in &self.0 {
            let shown = path.display();
            let broken = page.links.iter().filter(|(_, link)| !self.is_resolvable(path, link));
            problems.extend(broken.map(|(line, link)| format!("{shown}:{line}: broken link to {link}")));
            if OPENING.iter().any(|folder| path.starts_with(folder)) {
                let opens = page.fences.first().is_some_and(|(line, _)| *line <= OPENING_LINE_MAX);
                problems.extend((!opens).then(|| format!("{shown}:1: open the page with a code block")));
            }
            if CHECKED.iter().any(|checked| path.starts_with(checked)) {
                problems.extend(page.fences.iter().filter_map(|(line, info)| {
                    fence_problem(info).map(|problem| format!("{shown}:{line}: {problem}"))
                }));
            }
        }
        problems
    }

    fn unreachable(&self) -> Vec<String> {
        let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
        let mut next: Vec<PathBuf> = INDEXES.iter().map(PathBuf::from).collect();
        while let Some(path) = next.pop() {
            let Some(page) = self.0.get(&path) else { continue };
            if seen.insert(path.clone()) {
                next.extend(page.links.iter().filter_map(|(_, link)| Some(target(&path, link)?.0)));
            }
        }
        let pages = self.0.keys().filter(|path| path.starts_with("docs") && !seen.contains(*path));
        pages.map(|path| format!("{}:1: link to this page from docs/README.md", path.display())).collect()
    }

    fn is_resolvable(&self, from: &Path, link: &str) -> bool {
        let Some((path, anchor)) = target(from, link) else { return true };
        match (self.0.get(&path), anchor) {
            (Some(page), Some(anchor)) => page.headings.contains(anchor),
            (Some(_), None) => true,
            (None, _) => tree::root().join(path).exists(),
        }
    }
}

impl Page {
    fn parse(text: &str) -> Self {
        let (mut page, mut is_code) = (Self::default(), false);
        for (line, number) in text.lines().zip(1..) {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                is_code = !is_code;
                if is_code {
                    page.fences.push((number, info.to_owned()));
                }
            } else if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
                let anchor = anchor(heading.trim_start_matches('#'));
                // A heading that repeats has a number at the end of its anchor.
                let repeated = (1..).map(|count| format!("{anchor}-{count}"));
                let free = std::iter::once(anchor.clone()).chain(repeated);
                page.headings.extend(free.into_iter().find(|anchor| !page.headings.contains(anchor)));
            } else if !is_code {
                page.links.extend(links(line).map(|link| (number, link.to_owned())));
            }
        }
        page
    }
}

/// Problem in the info string of a fence, if any.
fn fence_problem(info: &str) -> Option<String> {
    let (language, mark) = info.split_once(' ').unwrap_or((info, ""));
    if DATA.contains(&language) && mark.is_empty() {
        return None;
    }
    match mark.split_once(": ") {
        Some(("no-test", reason)) if !reason.is_empty() => None,
        Some(("tested-by", path)) if tree::root().join(path).is_file() => None,
        Some(("tested-by", path)) => Some(format!("{path} does not exist")),
        None if mark.is_empty() && RUNS.contains(&language) => None,
        _ => Some(format!(
            "no test runs this block: write \"```{language} no-test: REASON\" or \"```{language} tested-by: PATH\""
        )),
    }
}

/// Targets of the links on a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

/// The file and the anchor of a relative link; `None` for a link to the web.
fn target<'a>(from: &Path, link: &'a str) -> Option<(PathBuf, Option<&'a str>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    if path.is_empty() {
        return Some((from.to_owned(), anchor));
    }
    let mut whole = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            part => whole.push(part),
        }
    }
    Some((whole, anchor))
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pages: &[(&str, &str)], expect: &[&str]) {
        let mut docs = Docs::default();
        pages.iter().for_each(|(path, text)| docs.read(Path::new(path), text));
        assert_eq!(docs.problems(), expect);
    }

    #[test]
    fn broken_links_and_unlinked_pages_are_reported() {
        let index = "[A](docs/how-to/a.md) [B](docs/how-to/a.md#the-x-y) [web](https://example.com)";
        let page = "```sh\nx\n```\n# The `x`, y\n[up](../../README.md)";
        check(&[("README.md", index), ("docs/how-to/a.md", page)], &[]);
        check(
            &[("README.md", "\n[A](docs/none.md) [B](#here)"), ("docs/b.md", "```sh\n[c](d.md)\n```")],
            &[
                "docs/b.md:1: link to this page from docs/README.md",
                "README.md:2: broken link to docs/none.md",
                "README.md:2: broken link to #here",
            ],
        );
    }

    #[test]
    fn a_page_opens_with_code() {
        let late = format!("{}```sh\n```\n", "\n".repeat(OPENING_LINE_MAX));
        check(
            &[("README.md", "[a](docs/how-to/a.md)"), ("docs/how-to/a.md", &late)],
            &["docs/how-to/a.md:1: open the page with a code block"],
        );
    }

    #[test]
    fn a_code_block_is_tested_or_states_a_reason() {
        for good in ["sh", "python", "text", "sh no-test: needs root", "ts tested-by: xtask/src/main.rs"] {
            assert_eq!(fence_problem(good), None, "{good}");
        }
        for bad in ["", "ts", "sh no-test", "sh no-test: ", "sh tested-by: none.py", "sh why"] {
            assert!(fence_problem(bad).is_some(), "{bad}");
        }
    }
}
