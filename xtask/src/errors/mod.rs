//! `cargo xtask errors`: the generated parts of `docs/reference/errors.md`.
//!
//! - Codes: the documentation of each `ErrorCode`, from `crates/pandastack-types/src/error.rs`.
//! - Messages: the text of every error that the sources construct with a code.
//!
//! `cargo xtask tidy` fails when the page is stale.

mod calls;
mod codes;
mod constants;
mod messages;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::tree;
use messages::Message;

/// The page, from the root.
const PAGE: &str = "docs/reference/errors.md";
/// Crates whose errors reach no user of the API, or reach them through another crate.
const INTERNAL: [&str; 5] = ["backup", "engine", "guest", "image", "fault"];

/// Writes the page.
pub fn run() -> Result<ExitCode> {
    let path = tree::root().join(PAGE);
    std::fs::write(&path, page()?).with_context(|| format!("write {PAGE}"))?;
    eprintln!("wrote {PAGE}");
    Ok(ExitCode::SUCCESS)
}

/// The problem, if the page is stale.
pub fn problem() -> Result<Option<String>> {
    let is_fresh = read(PAGE)? == page()?;
    Ok((!is_fresh).then(|| format!("{PAGE}:1: stale; run `cargo xtask errors`")))
}

fn page() -> Result<String> {
    let codes = codes::parse(&read("crates/pandastack-types/src/error.rs")?)?;
    let page = replace(&read(PAGE)?, "codes", &codes::table(&codes))?;
    replace(&page, "messages", &tables(&collect()?))
}

/// The page with other text between the comments that begin and end a part.
fn replace(page: &str, part: &str, text: &str) -> Result<String> {
    let (begin, end) =
        (format!("<!-- {part}: `cargo xtask errors` -->\n"), format!("<!-- end of {part} -->"));
    let (before, rest) = page.split_once(&begin).with_context(|| format!("{PAGE} has no {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("{PAGE} has no {end}"))?;
    Ok(format!("{before}{begin}\n{text}\n{end}{after}"))
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {}", path.display()))
}

/// Messages by area.
type Areas = BTreeMap<String, BTreeSet<Message>>;

fn collect() -> Result<Areas> {
    let mut sources = Vec::new();
    for path in tree::files()? {
        if let Some(area) = area(&path) {
            let parsed =
                syn::parse_file(&read(&path)?).with_context(|| format!("parse {}", path.display()))?;
            sources.push((area, parsed));
        }
    }
    let constants = constants::collect(sources.iter().map(|(_, file)| file));
    let coded = messages::codes_of_variants(sources.iter().map(|(_, file)| file));
    let mut areas = Areas::new();
    for (area, file) in &sources {
        // Several files may define a constant of this name; the message's own file takes
        // precedence.
        let mut constants = constants.clone();
        constants.extend(constants::collect(std::iter::once(file)));
        let found = messages::collect(file, &coded, &constants);
        if !found.is_empty() {
            areas.entry(area.clone()).or_default().extend(found);
        }
    }
    Ok(areas)
}

/// The area that a source belongs to: its crate, or its folder in `pandastack-control`.
fn area(path: &Path) -> Option<String> {
    let inside = path.to_str()?.strip_prefix("crates/pandastack-")?.strip_suffix(".rs")?;
    let (name, file) = inside.split_once("/src/")?;
    let is_internal = INTERNAL.iter().any(|internal| name.starts_with(internal));
    if is_internal || file.split('/').any(|part| part.ends_with("tests")) {
        return None;
    }
    Some(match (name, file.split_once('/')) {
        ("control", Some(("login", _))) => "sign-in".to_owned(),
        ("control", Some((folder, _))) if folder != "routes" => folder.to_owned(),
        ("control" | "rest" | "store" | "types", _) => "all of the API".to_owned(),
        ("agent" | "agent-client" | "net", _) => "hosts".to_owned(),
        ("edge", _) => "previews and domains".to_owned(),
        ("postgres", _) => "database connections".to_owned(),
        ("e2b", _) => "E2B clients".to_owned(),
        ("oidc", _) => "login provider".to_owned(),
        ("contexts", _) => "code contexts".to_owned(),
        _ => name.to_owned(),
    })
}

fn tables(areas: &Areas) -> String {
    let table = |(area, messages): (&String, &BTreeSet<Message>)| {
        let rows: String = messages.iter().map(Message::row).collect();
        format!("### {}\n\n| code | message |\n|---|---|\n{rows}", heading(area))
    };
    areas.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn heading(area: &str) -> String {
    let mut letters = area.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_files_map_to_error_areas() {
        let check = |path: &str, expect: Option<&str>| assert_eq!(area(Path::new(path)).as_deref(), expect);
        check("crates/pandastack-control/src/apps/check.rs", Some("apps"));
        check("crates/pandastack-apps/src/check.rs", Some("apps"));
        check("crates/pandastack-control/src/routes/fork.rs", Some("all of the API"));
        check("crates/pandastack-control/src/apps/tests.rs", None);
        check("crates/pandastack-engine-qemu/src/lib.rs", None);
        check("crates/pandastack/src/main.rs", None);
    }

    #[test]
    fn only_the_generated_part_of_the_page_changes() {
        let page = "a\n<!-- x: `cargo xtask errors` -->\nold\n<!-- end of x -->\nb\n";
        let expect = "a\n<!-- x: `cargo xtask errors` -->\n\nnew\n\n<!-- end of x -->\nb\n";
        assert_eq!(replace(page, "x", "new\n").unwrap(), expect);
        assert!(replace(page, "y", "").is_err());
    }
}
