//! File name patterns.
//!
//! `*` and `?` stay within a name, `**` crosses directories, `[a-z]`, `[!a-z]`, `{one,two}` and `\` work as in a
//! shell. A pattern without `/` is matched with the last component, one with `/` with the whole relative path.
//! Patterns become regular expressions without backtracking, so a hostile one costs linear time.
//!
//! `globset` interprets these patterns differently: there `?` and `[ü]` match one byte, so that
//! `?.txt` does not match `ü.txt`, and `**` within a name does not cross directories. It also
//! panics on a pattern that compiles to too much, which this module refuses.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode};
use regex::bytes::{Regex, RegexBuilder};

/// Longest pattern.
const PATTERN_BYTES_MAX: usize = 1024;
/// Memory that a compiled pattern may take.
pub(super) const COMPILED_BYTES_MAX: usize = 1024 * 1024;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Glob {
    regex: Regex,
    whole_path: bool,
}

impl Glob {
    pub(super) fn new(pattern: &str) -> Result<Self, ErrorBody> {
        let refuse = |why: String| ErrorBody::new(ErrorCode::Invalid, format!("the file pattern {why}"));
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            return Err(refuse(format!("must have 1 to {PATTERN_BYTES_MAX} bytes")));
        }
        let relative = pattern.trim_start_matches('/');
        let text = translate(relative).map_err(refuse)?;
        let regex = RegexBuilder::new(&text)
            .size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|_| refuse(format!("{pattern:?} has a bad `[...]`, or is too large")))?;
        Ok(Self { regex, whole_path: pattern.contains('/') })
    }

    /// Returns whether a relative path matches.
    pub(super) fn matches(&self, relative: &Path) -> bool {
        let subject = if self.whole_path { Some(relative.as_os_str()) } else { relative.file_name() };
        subject.is_some_and(|subject| self.regex.is_match(subject.as_bytes()))
    }
}

/// Any character except the separator, including bytes that are not UTF-8.
const ANY: &str = "(?:[^/]|(?-u:[^/]))";

fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::from("(?s)\\A");
    let mut chars = pattern.chars().peekable();
    let mut alternatives = 0_u32;
    while let Some(c) = chars.next() {
        match c {
            '*' if chars.next_if_eq(&'*').is_some() => {
                if chars.next_if_eq(&'/').is_some() {
                    out.push_str("(?:(?-u:.)*/)?");
                } else {
                    out.push_str("(?-u:.)*");
                }
            }
            '*' => out.push_str("(?-u:[^/])*"),
            '?' => out.push_str(ANY),
            '[' => out.push_str(&class(&mut chars)?),
            '{' => {
                alternatives += 1;
                out.push_str("(?:");
            }
            '}' if alternatives > 0 => {
                alternatives -= 1;
                out.push(')');
            }
            ',' if alternatives > 0 => out.push('|'),
            '\\' => out.push_str(&regex::escape(&chars.next().unwrap_or('\\').to_string())),
            c => out.push_str(&regex::escape(&c.to_string())),
        }
    }
    if alternatives > 0 {
        return Err("has a `{` without `}`".to_owned());
    }
    out.push_str("\\z");
    Ok(out)
}

fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, String> {
    let negated = chars.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut inner = String::new();
    loop {
        match chars.next() {
            None => return Err("has a `[` without `]`".to_owned()),
            Some(']') if !inner.is_empty() => break,
            Some('-') => inner.push('-'),
            Some('\\') => inner.push_str(&regex::escape(&chars.next().unwrap_or('\\').to_string())),
            // Characters that mean something inside a class of the regular expression.
            Some(c @ ('[' | ']' | '^' | '&' | '~')) => {
                inner.push('\\');
                inner.push(c);
            }
            Some(c) => inner.push(c),
        }
    }
    Ok(if negated { format!("[^/{inner}]") } else { format!("[{inner}]") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob = Glob::new(pattern).unwrap();
        for path in matching {
            assert!(glob.matches(Path::new(path)), "{pattern} should match {path}");
        }
        for path in others {
            assert!(!glob.matches(Path::new(path)), "{pattern} should not match {path}");
        }
    }

    #[test]
    fn glob_patterns_match_like_a_shell() {
        check("*.rs", &["a.rs", "src/deep/b.rs", ".rs"], &["a.rsx", "rs"]);
        check("src/*.rs", &["src/a.rs"], &["src/deep/a.rs", "a.rs"]);
        check("src/**/*.rs", &["src/a.rs", "src/x/y/a.rs"], &["other/a.rs"]);
        check("src/**", &["src/a", "src/x/y"], &["src"]);
        check("src/a**b", &["src/ab", "src/a/x/b"], &["src/a/x/c"]);
        check("?.txt", &["a.txt", "ü.txt"], &["ab.txt", ".txt"]);
        check("[a-c]x", &["ax", "cx"], &["dx"]);
        check("[!a-c]x", &["dx"], &["ax"]);
        check("[äü]x", &["üx", "äx"], &["ux"]);
        check("{one,two}.md", &["one.md", "two.md"], &["three.md", "one,two.md"]);
        check("a\\*b", &["a*b"], &["axb"]);
        check("a+b(c).$", &["a+b(c).$"], &["aab(c).$"]);
        check("/top", &["top"], &["x/top"]);
        check("a b/ü*", &["a b/übung"], &[]);
    }

    #[test]
    fn non_utf8_names_match_wildcards() {
        let name = std::ffi::OsStr::from_bytes(b"bad\xff.bin");
        assert!(Glob::new("*.bin").unwrap().matches(Path::new(name)));
        assert!(Glob::new("bad?.bin").unwrap().matches(Path::new(name)));
    }

    #[test]
    fn invalid_input_is_rejected() {
        for bad in ["", "[", "[]", "{a", "[z-a]"] {
            assert_eq!(Glob::new(bad).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
        assert!(Glob::new(&"x".repeat(PATTERN_BYTES_MAX + 1)).is_err());
    }
}
