//! Reading the text of a `.env` file.
//!
//! ```text
//!   # a comment
//!   export KEY = value # a comment
//!   KEY='as it is, over several lines too'
//!   KEY="the same, with \n, \r, \" and \\"
//! ```
//!
//! Must hold: what cannot be read is named by the number of its line, and nothing of it is shown.
//! An invalid name may be part of a secret whose quotes were forgotten.

use std::collections::BTreeMap;

use pandastack_types::{Error, Result};

use crate::check;

/// A variable of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Line number, from 1.
    pub(crate) line: usize,
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Pair {
    /// An error about it, with its line.
    pub(crate) fn refused(&self, mut error: Error) -> Error {
        error.message = format!("line {}: {}", self.line, error.message);
        error
    }
}

/// The variables of a text. A later one of the same name wins.
pub(crate) fn parse(text: &str) -> Result<Vec<Pair>> {
    let text = text.replace("\r\n", "\n");
    let (mut rest, mut number) = (text.as_str(), 1);
    let mut pairs = BTreeMap::new();
    while !rest.is_empty() {
        let refuse = |why: &str| Error::bad_request(format!("line {number} {why}"));
        let (line, mut after) = first_line(rest);
        let is_blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        if !is_blank {
            if !line.contains('=') {
                return Err(refuse("must have the form KEY=value"));
            }
            // The first one is in this line, and what follows it may be in the next ones.
            let (name, written) = rest.split_once('=').unwrap_or_default();
            let name = name.trim();
            let name = name.strip_prefix("export ").unwrap_or(name).trim();
            if !check::is_env_name(name) {
                return Err(refuse(
                    "has an invalid variable name; use letters, digits and `_`, and start with a letter or `_`",
                ));
            }
            let value;
            (value, after) = read_value(written).map_err(refuse)?;
            pairs.insert(name.to_owned(), Pair { line: number, key: name.to_owned(), value });
        }
        let taken = &rest[..rest.len() - after.len()];
        number += taken.matches('\n').count();
        rest = after;
    }
    let mut pairs: Vec<Pair> = pairs.into_values().collect();
    pairs.sort_unstable_by_key(|pair| pair.line);
    Ok(pairs)
}

/// The first line of a text, and what follows it.
fn first_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

/// The value at the beginning of a text, and the lines after it.
fn read_value(written: &str) -> Result<(String, &str), &'static str> {
    let value = written.trim_start_matches([' ', '\t']);
    let mut inner = value.chars();
    if let Some(quote @ ('"' | '\'')) = inner.next() {
        let closed = quoted(inner.as_str(), quote);
        let (value, rest) = closed.ok_or("has a value with an unclosed quote; close it")?;
        let (more, after) = first_line(rest);
        if !more.trim().is_empty() && !more.trim_start().starts_with('#') {
            return Err("has text after a quoted value; put a `\\` before a `\"` inside the value");
        }
        return Ok((value, after));
    }
    let (value, after) = first_line(written);
    // Without quotes a comment may follow.
    let value = value.split_once(" #").map_or(value, |(value, _)| value);
    Ok((value.trim().to_owned(), after))
}

/// Splits a quoted value from the text after its closing quote; `None` if there is none.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut left = text.chars();
    while let Some(one) = left.next() {
        match one {
            _ if one == quote => return Some((value, left.as_str())),
            '\\' if quote == '"' => match left.next()? {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                meant @ ('"' | '\\') => value.push(meant),
                other => value.extend(['\\', other]),
            },
            _ => value.push(one),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotenv_values_are_parsed() {
        for (text, expect) in [
            ("A=1", &[(1, "A", "1")][..]),
            ("# c\n\n  # d\nA=1\n", &[(4, "A", "1")]),
            ("A=1\nA=2\n", &[(2, "A", "2")]),
            ("export B = \"x\\ny\" # c", &[(1, "B", "x\ny")]),
            (
                "C='#1'\nD=a b # c\nE=\nF= # c\nG=#fff",
                &[(1, "C", "#1"), (2, "D", "a b"), (3, "E", ""), (4, "F", ""), (5, "G", "#fff")],
            ),
            ("A=\"one\ntwo\n\"\nB=2", &[(1, "A", "one\ntwo\n"), (4, "B", "2")]),
            ("A='one\r\ntwo'\r\nB=2\r\n", &[(1, "A", "one\ntwo"), (3, "B", "2")]),
            (r#"A="say \"hi\"=\\""#, &[(1, "A", r#"say "hi"=\"#)]),
            (r"A='\n\'", &[(1, "A", r"\n\")]),
            (r#"A="C:\temp""#, &[(1, "A", r"C:\temp")]),
            ("A=it's \"so\"", &[(1, "A", "it's \"so\"")]),
            ("A=\"\"", &[(1, "A", "")]),
            ("A=b=c", &[(1, "A", "b=c")]),
            ("A=ü # é", &[(1, "A", "ü")]),
            ("", &[]),
        ] {
            let pairs = parse(text).unwrap();
            let pairs: Vec<_> =
                pairs.iter().map(|one| (one.line, one.key.as_str(), one.value.as_str())).collect();
            assert_eq!(pairs, expect, "{text:?}");
        }
    }

    #[test]
    fn dotenv_errors_name_the_line_without_its_content() {
        for (text, expect) in [
            ("s3cret", "line 1 must have the form KEY=value"),
            ("A=1\n\ns3cret\n", "line 3 must have the form KEY=value"),
            ("A=\"x\ny\"\n1s3cret=1", "line 3 has an invalid variable name"),
            ("s3cret+/=", "line 1 has an invalid variable name"),
            ("=s3cret", "line 1 has an invalid variable name"),
            ("A=1\nB=\"s3cret\nC=3\n", "line 2 has a value with an unclosed quote"),
            ("A='s3cret", "line 1 has a value with an unclosed quote"),
            (r#"A="s3cret\""#, "line 1 has a value with an unclosed quote"),
            ("A=1\nB=\"a\" s3cret", "line 2 has text after a quoted value"),
            ("A='s3cret\nB='x'", "line 1 has text after a quoted value"),
        ] {
            let error = parse(text).unwrap_err().message;
            assert!(error.starts_with(expect) && !error.contains("s3cret"), "{text:?}: {error}");
        }
    }
}
