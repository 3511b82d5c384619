//! Splits text into logical lines.

use crate::{Heredoc, ParseError};

/// An instruction as one line of text, with its heredocs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogicalLine {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) heredocs: Vec<Heredoc>,
}

/// Instructions that may have heredocs.
const WITH_HEREDOCS: [&str; 3] = ["RUN", "COPY", "ADD"];

/// The escape character that a directive at the top of the file sets.
pub(crate) fn escape_directive(text: &str) -> Result<char, ParseError> {
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim().strip_prefix('#') else { break };
        let Some((name, value)) = comment.split_once('=') else { break };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", value) => {
                let message = format!("escape character `{value}` is not supported; use \\ or `");
                return Err(ParseError::new(index + 1, message));
            }
            ("syntax" | "check", _) => {}
            _ => break,
        }
    }
    Ok('\\')
}

/// Joins continued lines, drops comments and collects heredocs.
pub(crate) fn logical_lines(text: &str, escape: char) -> Result<Vec<LogicalLine>, ParseError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end_matches('\r')));
    let mut found = Vec::new();
    while let Some((first, line)) = lines.next() {
        if is_blank_or_comment(line) {
            continue;
        }
        let mut text = String::new();
        let mut next = Some(line);
        while let Some(line) = next {
            let (part, continues) = continued(line, escape);
            text.push_str(part);
            if !continues {
                break;
            }
            // Comments and empty lines inside a continued instruction do not end it.
            next = lines.by_ref().map(|(_, line)| line).find(|line| !is_blank_or_comment(line));
        }
        let text = text.trim().to_owned();
        let mut heredocs = Vec::new();
        for mut heredoc in heredocs_of(&text, first)? {
            heredoc.body = body(&mut lines, &heredoc, first)?;
            heredocs.push(heredoc);
        }
        found.push(LogicalLine { line: first, text, heredocs });
    }
    Ok(found)
}

fn is_blank_or_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// The part of a line before its continuation character, and whether it has one.
fn continued(line: &str, escape: char) -> (&str, bool) {
    let trimmed = line.trim_end();
    match trimmed.strip_suffix(escape) {
        // An escaped escape character continues nothing.
        Some(before) if !before.ends_with(escape) => (before, true),
        _ => (line, false),
    }
}

/// The heredocs that a line announces, without their bodies.
fn heredocs_of(text: &str, line: usize) -> Result<Vec<Heredoc>, ParseError> {
    let keyword = text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let mut found = Vec::new();
    if !WITH_HEREDOCS.contains(&keyword.as_str()) {
        return Ok(found);
    }
    let bytes = text.as_bytes();
    let (mut at, mut quote) = (0, None);
    while let Some(&byte) = bytes.get(at) {
        match (quote, byte) {
            (None, b'\'' | b'"') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            (None | Some(b'"'), b'\\') => at += 1,
            (None, b'<') if text[at..].starts_with("<<<") => at += 2,
            (None, b'<') if text[at..].starts_with("<<") => {
                let (heredoc, used) = announced(&text[at + 2..], line)?;
                at += 1 + used;
                found.extend(heredoc);
            }
            _ => {}
        }
        at += 1;
    }
    Ok(found)
}

/// Reads what follows `<<`. `None` where no name follows, such as the shift in `$((1 << 2))`.
fn announced(text: &str, line: usize) -> Result<(Option<Heredoc>, usize), ParseError> {
    let (strip_tabs, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let dash = usize::from(strip_tabs);
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '.' || char == '-';
    let (name, expand, used) = match rest.chars().next() {
        Some(quote @ ('\'' | '"')) => {
            let inner = &rest[1..];
            let end = inner
                .find(quote)
                .ok_or_else(|| ParseError::new(line, "a heredoc name has no closing quote"))?;
            (&inner[..end], false, end + 2)
        }
        _ => {
            let end = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
            (&rest[..end], true, end)
        }
    };
    let starts_as_name = name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_');
    if !starts_as_name {
        return Ok((None, dash));
    }
    let heredoc = Heredoc { name: name.to_owned(), expand, strip_tabs, body: String::new() };
    Ok((Some(heredoc), dash + used))
}

fn body<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
    heredoc: &Heredoc,
    first: usize,
) -> Result<String, ParseError> {
    let mut body = String::new();
    for (_, line) in lines {
        let line = if heredoc.strip_tabs { line.trim_start_matches('\t') } else { line };
        if line == heredoc.name {
            return Ok(body);
        }
        body.push_str(line);
        body.push('\n');
    }
    let name = &heredoc.name;
    Err(ParseError::new(first, format!("heredoc `{name}` has no end; add a line that is just `{name}`")))
}
