//! `cargo xtask tidy --wrap`: wraps comments that are too wide, which rustfmt leaves alone.
//!
//! Only paragraphs of prose with a line over the limit change. Lists keep their indentation;
//! tables, headings, code, drawings and text inside string literals stay as they are.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::text::{COLUMNS_MAX, columns};

/// Width of prose that is wrapped.
const PROSE_COLUMNS: usize = 100;

/// The text of a Rust file with its comments wrapped.
pub fn comments(text: &str) -> Result<String> {
    let tokens: TokenStream = text.parse().ok().context("read the tokens of a file")?;
    let mut literal = BTreeSet::new();
    lines_in_literals(tokens, &mut literal);
    let lines: Vec<&str> = text.lines().collect();
    let mut wrapped: Vec<String> = Vec::new();
    let mut at = 0;
    let mut in_code = false;
    while let Some(line) = lines.get(at) {
        let comment = Comment::of(line).filter(|_| !literal.contains(&(at + 1)));
        let fence = comment.is_some_and(|comment| comment.text.trim_start().starts_with("```"));
        // A block of code ends with its comment, even when nothing closes it.
        in_code = comment.is_some() && (in_code != fence);
        let Some(comment) = comment.filter(|comment| !in_code && comment.is_prose()) else {
            wrapped.push((*line).to_owned());
            at += 1;
            continue;
        };
        let hang = comment.hang();
        let continues = |line: &&&str| {
            Comment::of(line).is_some_and(|next| next.continues(&comment, hang.len())) && !fence
        };
        let more = lines[at + 1..].iter().take_while(continues).count();
        let paragraph = &lines[at..=at + more];
        if paragraph.iter().any(|line| columns(line) > COLUMNS_MAX) {
            wrapped.extend(fill(&comment, &hang, paragraph));
        } else {
            wrapped.extend(paragraph.iter().map(|line| (*line).to_owned()));
        }
        at += more + 1;
    }
    wrapped.push(String::new());
    Ok(wrapped.join("\n"))
}

/// Lines whose beginning is inside a string literal.
fn lines_in_literals(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            // Doc comments are literals to the compiler, in a group of their own.
            TokenTree::Literal(literal) => {
                let span = literal.span();
                lines.extend(span.start().line + 1..=span.end().line);
            }
            TokenTree::Group(group) => lines_in_literals(group.stream(), lines),
            _ => {}
        }
    }
}

/// A line that is a comment and nothing else.
#[derive(Debug, Clone, Copy)]
struct Comment<'a> {
    /// Indentation and mark.
    start: &'a str,
    /// Text after the mark and its space.
    text: &'a str,
}

impl<'a> Comment<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let indent = line.len() - line.trim_start().len();
        let mark = ["//!", "///", "//"].into_iter().find(|mark| line[indent..].starts_with(mark))?;
        let (start, text) = line.split_at(indent + mark.len());
        Some(Self { start, text: text.strip_prefix(' ').unwrap_or(text) })
    }

    fn is_prose(&self) -> bool {
        let text = self.text.trim_end();
        let verbatim = ["|", "#", "```", "    ", "--", "=="];
        let is_verbatim = verbatim.iter().any(|start| text.starts_with(start));
        let is_drawing = text.trim_start().contains("  ");
        let is_link = text.starts_with('[') && text.contains("]: ");
        !(text.is_empty() || is_verbatim || is_drawing || is_link)
    }

    /// Returns whether this line continues the paragraph that `first` began.
    fn continues(&self, first: &Comment<'_>, hang: usize) -> bool {
        let indent = self.text.len() - self.text.trim_start().len();
        self.start == first.start && self.is_prose() && indent == hang && bullet(self.text).is_none()
    }

    /// The indentation of lines after the first.
    fn hang(&self) -> String {
        let indent = self.text.len() - self.text.trim_start().len();
        " ".repeat(indent + bullet(self.text).unwrap_or_default())
    }
}

/// The length of a list item's mark.
fn bullet(text: &str) -> Option<usize> {
    let text = text.trim_start();
    let (mark, _) = text.split_once(' ')?;
    let number = mark.strip_suffix(['.', ')']).is_some_and(|digits| digits.parse::<u8>().is_ok());
    (number || ["-", "*", "+"].contains(&mark)).then_some(mark.len() + 1)
}

fn fill(first: &Comment<'_>, hang: &str, paragraph: &[&str]) -> Vec<String> {
    let texts = paragraph.iter().filter_map(|line| Comment::of(line)).map(|comment| comment.text);
    let words: Vec<&str> = texts.flat_map(str::split_whitespace).collect();
    let indent = first.text.len() - first.text.trim_start().len();
    let mut lines = Vec::new();
    let mut line = format!("{} {}", first.start, &first.text[..indent]);
    let mut is_empty = true;
    for (at, word) in words.iter().enumerate() {
        // At the beginning of a line these would begin a list, a heading or a table.
        let begins_other = bullet(&format!("{word} x")).is_some() || word.starts_with(['#', '|', '>']);
        let glued = words.get(at + 1).is_some_and(|next| bullet(&format!("{next} x")).is_some());
        let wide = columns(&line) + 1 + columns(word) > PROSE_COLUMNS - if glued { 3 } else { 0 };
        if wide && !is_empty && !begins_other {
            lines.push(std::mem::replace(&mut line, format!("{} {hang}", first.start)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(comments(text).unwrap(), expect);
    }

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn wide_prose_is_wrapped() {
        let (wide, fits) = (words(24), words(19));
        let text = format!("//! {wide}\n//! more\n\nfn f() {{\n    // {wide}\n}}\n");
        let narrow = words(18);
        let expect = format!(
            "//! {fits}\n//! {} more\n\nfn f() {{\n    // {narrow}\n    // {}\n}}\n",
            words(5),
            words(6)
        );
        check(&text, &expect);
        check(&format!("/// - {wide}\n///   end\n/// - x\nfn f() {{}}\n"), &{
            format!("/// - {}\n///   {} end\n/// - x\nfn f() {{}}\n", words(19), words(5))
        });
    }

    #[test]
    fn other_lines_are_not_wrapped() {
        let wide = words(24);
        for start in ["/// | ", "/// # ", "///     ", "// a  b ", "let x = 1; // "] {
            let text = format!("fn f() {{\n{start}{wide}\nlet y = 1;\n}}\n");
            check(&text, &text);
        }
        let literal = format!("const A: &str = r\"\n// {wide}\n\";\n");
        check(&literal, &literal);
        let code = format!("/// ```text\n/// {wide}\n/// ```\n/// short\nfn f() {{}}\n");
        check(&code, &code);
    }

    #[test]
    fn wrapped_lines_never_start_with_a_bullet() {
        let text = format!("// {} word - end of it all and more\n", words(19));
        let wrapped = comments(&text).unwrap();
        assert!(wrapped.lines().count() == 2 && !wrapped.contains("// -"), "{wrapped}");
    }
}
