//! The Node version that a source requires, and whether another one matches.
//!
//! One major number can be installed. Any other range or name is a condition on the installed
//! version.

use crate::view::View;

/// Names of versions with long support, by their major number.
const NAMES: [(&str, u32); 8] = [
    ("dubnium", 10),
    ("erbium", 12),
    ("fermium", 14),
    ("gallium", 16),
    ("hydrogen", 18),
    ("iron", 20),
    ("jod", 22),
    ("krypton", 24),
];
/// Words that request no specific version.
const ANY: [&str; 10] = ["", "*", "x", "lts", "lts/*", "node", "latest", "stable", "current", "system"];
/// Characters of the requested version that are shown.
const SHOWN_MAX: usize = 60;

/// A condition on the Node of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRequirement {
    /// Text of the requirement: `>=20 <21`, `18 || 20`.
    pub wanted: String,
    /// File that states it.
    pub file: &'static str,
}

impl NodeRequirement {
    /// Returns whether a Node of this version, `22.11.0`, satisfies the requirement. No version
    /// satisfies a condition that is not understood; an unknown installed version satisfies all.
    pub fn suits(&self, has: &str) -> bool {
        let Some(has) = Version::parse(has.trim().trim_start_matches('v')) else { return true };
        self.wanted.split("||").any(|range| is_in_range(range, has.floor()))
    }

    /// Start of the text, short enough for a sentence.
    pub fn shown(&self) -> String {
        self.wanted.chars().take(SHOWN_MAX).collect()
    }
}

/// The first requested major version, and its file.
pub(crate) fn major(view: &View, engines: Option<&str>) -> Option<(u32, &'static str)> {
    declared_versions(view, engines).find_map(|(text, file)| major_of(text).map(|major| (major, file)))
}

/// The first condition that is not a plain major version.
pub(crate) fn condition(view: &View, engines: Option<&str>) -> Option<NodeRequirement> {
    let is_condition = |text: &str| major_of(text).is_none() && !ANY.contains(&text);
    let (text, file) = declared_versions(view, engines).find(|(text, _)| is_condition(text))?;
    let wanted = text.chars().filter(|c| !c.is_control()).collect();
    Some(NodeRequirement { wanted, file })
}

/// Version requirements in the source, by precedence.
fn declared_versions<'a>(
    view: &'a View,
    engines: Option<&'a str>,
) -> impl Iterator<Item = (&'a str, &'static str)> {
    let without_comment = |line: &'a str| line.split('#').next().unwrap_or_default().trim();
    let first = move |path: &'static str| {
        view.text(path).and_then(|text| text.lines().map(without_comment).find(|line| !line.is_empty()))
    };
    let tools = view.text(".tool-versions").and_then(|text| {
        text.lines().find_map(|line| line.strip_prefix("nodejs ").or(line.strip_prefix("node ")))
    });
    let all = [
        (engines, "engines in package.json"),
        (first(".nvmrc"), ".nvmrc"),
        (first(".node-version"), ".node-version"),
        (tools, ".tool-versions"),
    ];
    all.into_iter().filter_map(|(text, file)| text.map(|text| (text.trim(), file)))
}

/// The major number of `20`, `v20.1.0`, `^20.3`, `20.x` or `lts/iron`. A range with several major
/// versions, or with only a lower bound (`>=18`), requests no specific version.
fn major_of(text: &str) -> Option<u32> {
    if let Some(name) = text.strip_prefix("lts/").or_else(|| text.strip_prefix("lts-")) {
        return NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, major)| *major);
    }
    if text.starts_with(['>', '<', '*']) || text.contains("||") {
        return None;
    }
    let digits: String =
        text.trim_start_matches(['v', '^', '~', '=']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A version with the components that are stated: `20`, `20.x`, `20.1.0`.
#[derive(Debug, Clone, Copy)]
struct Version {
    major: u32,
    minor: Option<u32>,
    patch: Option<u32>,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        let major = parts.next()??;
        let minor = parts.next().flatten();
        Some(Self { major, minor, patch: minor.and(parts.next().flatten()) })
    }

    /// The lowest version that is meant.
    fn floor(self) -> (u32, u32, u32) {
        (self.major, self.minor.unwrap_or(0), self.patch.unwrap_or(0))
    }

    /// Returns whether this possibly partial version covers the given one.
    fn has(self, (major, minor, patch): (u32, u32, u32)) -> bool {
        self.major == major
            && self.minor.is_none_or(|own| own == minor)
            && self.patch.is_none_or(|own| own == patch)
    }
}

/// Returns whether a version is in `>=20 <21`, `^18.2`, or `18 - 20`.
fn is_in_range(range: &str, has: (u32, u32, u32)) -> bool {
    if let Some((from, to)) = range.split_once(" - ") {
        return satisfies(&format!(">={}", from.trim()), has) && satisfies(&format!("<={}", to.trim()), has);
    }
    // Operators may stand apart from their versions.
    let mut operator = String::new();
    for word in range.split_whitespace() {
        operator.push_str(word);
        if word.chars().all(|c| "<>=~^".contains(c)) {
            continue;
        }
        if !satisfies(&std::mem::take(&mut operator), has) {
            return false;
        }
    }
    true
}

/// Returns whether a version satisfies one condition.
fn satisfies(condition: &str, has: (u32, u32, u32)) -> bool {
    let version = condition.trim_start_matches(['<', '>', '=', '~', '^']);
    let operator = &condition[..condition.len() - version.len()];
    let version = version.trim_start_matches('v');
    if ANY.contains(&version) {
        return true;
    }
    let Some(its) = Version::parse(version) else { return false };
    match operator {
        ">=" => has >= its.floor(),
        ">" => has > its.floor() && !its.has(has),
        "<" => has < its.floor(),
        "<=" => has <= its.floor() || its.has(has),
        "^" => has >= its.floor() && has.0 == its.major,
        "~" | "~>" => has >= its.floor() && Version { patch: None, ..its }.has(has),
        _ => its.has(has),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_version_ranges_follow_npm_semantics() {
        for (wanted, suits) in [
            (">=20 <21", [false, true, false]),
            (">= 20 < 21", [false, true, false]),
            (">=18", [true, true, true]),
            (">20", [false, false, true]),
            (">20.9.0", [false, true, true]),
            ("<20.11.1", [true, false, false]),
            ("<=20", [true, true, false]),
            ("18 || 20", [true, true, false]),
            ("^18.2 || >=22", [true, false, true]),
            ("18 - 20", [true, true, false]),
            (">=20.x", [false, true, true]),
            ("~20.11 || 1", [false, true, false]),
            ("~20.10 || 1", [false, false, false]),
            ("*", [true, true, true]),
            ("^14.17.0 || ^16.13.0 || ^18.12.0 || ^19.1.0 || ^21.1.0 || >= 22.1.0", [true, false, true]),
            ("lts/unheard-of", [false, false, false]),
        ] {
            let wish = NodeRequirement { wanted: wanted.to_owned(), file: "package.json" };
            let found = ["18.20.4", "20.11.1", "v22.3.0\n"].map(|has| wish.suits(has));
            assert_eq!(found, suits, "{wanted}");
            assert!(wish.suits(""), "nothing is known of what is there");
        }
    }
}
