//! The Python version that a source requires, and whether another one matches.

use crate::view::View;

/// The Python version that a file requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonRequirement {
    /// Text of the requirement: `3.11`, or conditions such as `>=3.11,<4`.
    pub wanted: String,
    /// The file.
    pub file: &'static str,
}

impl PythonRequirement {
    /// Returns whether a Python of this version, `3.13`, satisfies the requirement. A version that
    /// cannot be compared satisfies all.
    pub fn suits(&self, has: &str) -> bool {
        let Some((major, minor, _)) = numbers(has) else { return true };
        self.wanted.split(',').all(|condition| satisfies(condition.trim(), (major, minor)))
    }
}

/// The Python requirement of a source, from the first file that states one.
pub(crate) fn required(view: &View) -> Option<PythonRequirement> {
    let line = |file: &'static str| {
        let wanted = version_of(view.text(file)?.lines().next()?)?;
        Some(PythonRequirement { wanted, file })
    };
    let tools = || {
        let file = ".tool-versions";
        let line = view.text(file)?.lines().find_map(|line| line.strip_prefix("python "))?;
        Some(PythonRequirement { wanted: version_of(line)?, file })
    };
    line(".python-version")
        .or_else(|| line("runtime.txt"))
        .or_else(tools)
        .or_else(|| in_toml(view, "Pipfile", &[&["requires", "python_version"]]))
        .or_else(|| in_toml(view, "pyproject.toml", &[&["project", "requires-python"], POETRY]))
}

const POETRY: &[&str] = &["tool", "poetry", "dependencies", "python"];

/// The text at the first of these places that has one.
fn in_toml(view: &View, file: &'static str, places: &[&[&str]]) -> Option<PythonRequirement> {
    let document: toml::Table = toml::from_str(view.text(file)?).ok()?;
    let text = |place: &&[&str]| {
        let (first, rest) = place.split_first()?;
        let found = rest.iter().try_fold(document.get(*first)?, |value, key| value.get(key))?;
        found.as_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let wanted = places.iter().find_map(text)?;
    Some(PythonRequirement { wanted, file })
}

/// `3.11` of `3.11.4`, `python-3.11.4` or `cpython@3.11`. Other interpreters, ranges and bare major
/// numbers give no comparable version.
fn version_of(text: &str) -> Option<String> {
    let text = text.trim().trim_start_matches('c');
    let text = text.strip_prefix("python").unwrap_or(text).trim_start_matches(['-', '@']);
    let (major, minor, _) = numbers(text)?;
    Some(format!("{major}.{}", minor?))
}

/// Major, minor and third number of a version, as far as it has them.
fn numbers(text: &str) -> Option<(u32, Option<u32>, Option<u32>)> {
    let mut parts = text.trim().split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let major = parts.next()??;
    let minor = parts.next().flatten();
    Some((major, minor, minor.and(parts.next().flatten())))
}

/// Returns whether one condition holds for a version, by its first two numbers: the third of the
/// installed one is unknown.
fn satisfies(condition: &str, (major, minor): (u32, Option<u32>)) -> bool {
    let version = condition.trim_start_matches(|c: char| !c.is_ascii_digit());
    let operator = condition[..condition.len() - version.len()].trim();
    let Some((its_major, its_minor, third)) = numbers(version) else { return true };
    let (has, its) = ((major, minor.unwrap_or(0)), (its_major, its_minor.unwrap_or(0)));
    let is_equal = major == its_major && (its_minor.is_none() || minor == its_minor);
    match operator {
        "" | "=" | "==" | "===" | "~" => is_equal,
        "!=" => third.is_some() || !is_equal,
        ">=" => has >= its,
        ">" => has > its || (third.is_some() && is_equal),
        "<=" => has <= its,
        "<" => has < its || (third.is_some_and(|third| third > 0) && is_equal),
        "~=" if third.is_some() => is_equal,
        "~=" | "^" => has >= its && major == its_major,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_version_ranges_compare_major_and_minor() {
        let check = |wanted: &str, has: &str, expect| {
            let wish = PythonRequirement { wanted: wanted.to_owned(), file: "pyproject.toml" };
            assert_eq!(wish.suits(has), expect, "{wanted} with {has}");
        };
        for (wanted, lower, same, higher) in [
            ("3.12", false, true, false),
            ("==3.12.*", false, true, false),
            (">=3.12", false, true, true),
            (">= 3.12.1, <4", false, true, true),
            (">3.12", false, false, true),
            (">3.12.2", false, true, true),
            ("<3.12", true, false, false),
            ("<3.12.4", true, true, false),
            ("<=3.12", true, true, false),
            ("!=3.12.*", true, false, true),
            ("!=3.12.1", true, true, true),
            ("~=3.12", false, true, true),
            ("~=3.12.1", false, true, false),
            ("^3.12", false, true, true),
            ("~3.12", false, true, false),
            (">=3.9,<3.12", true, false, false),
            ("*", true, true, true),
            (">=3", true, true, true),
            ("nonsense", true, true, true),
        ] {
            check(wanted, "3.11", lower);
            check(wanted, "3.12", same);
            check(wanted, "3.13", higher);
        }
        check("^3.12", "4.0", false);
        check("3.12", "", true);
    }
}
