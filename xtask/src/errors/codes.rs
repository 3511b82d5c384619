//! The table of error codes, from their documentation.

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};

/// Start of the paragraph with the next step in a code's documentation.
const NEXT_STEP: &str = "Next step: ";

/// One code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Code {
    name: String,
    status: u16,
    meaning: String,
    next_step: String,
}

/// Every code, in the order of the source.
pub fn parse(source: &str) -> Result<Vec<Code>> {
    let file = syn::parse_file(source).context("parse the error codes")?;
    let call = file.items.into_iter().find_map(|item| match item {
        syn::Item::Macro(item) if item.mac.path.is_ident("error_codes") => Some(item.mac.tokens),
        _ => None,
    });
    let codes = read(call.context("there is no `error_codes!`")?)?;
    if let Some(code) = codes.iter().find(|code| code.meaning.is_empty() || code.next_step.is_empty()) {
        bail!("`{}` needs a meaning and a paragraph that begins with `{NEXT_STEP}`", code.name);
    }
    Ok(codes)
}

fn read(tokens: TokenStream) -> Result<Vec<Code>> {
    let (mut codes, mut code) = (Vec::new(), Code::default());
    for token in tokens {
        match token {
            // `[doc = "..."]`
            TokenTree::Group(group) => document(&mut code, group.stream()),
            TokenTree::Ident(name) => code.name = snake_case(&name.to_string()),
            TokenTree::Literal(status) => code.status = status.to_string().parse().context("a status")?,
            TokenTree::Punct(mark) if mark.as_char() == ',' => codes.push(std::mem::take(&mut code)),
            TokenTree::Punct(_) => {}
        }
    }
    Ok(codes)
}

fn document(code: &mut Code, attribute: TokenStream) {
    let Some(TokenTree::Literal(literal)) = attribute.into_iter().last() else { return };
    let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else { return };
    let (text, is_next) = (text.value().trim().to_owned(), !code.next_step.is_empty());
    match text.strip_prefix(NEXT_STEP) {
        Some(step) => code.next_step = step.to_owned(),
        None if is_next => join(&mut code.next_step, &text),
        None => join(&mut code.meaning, &text),
    }
}

fn join(paragraph: &mut String, line: &str) {
    if !paragraph.is_empty() && !line.is_empty() {
        paragraph.push(' ');
    }
    paragraph.push_str(line);
}

/// `BadRequest` as `bad_request`.
pub fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// The table in markdown, by status.
pub fn table(codes: &[Code]) -> String {
    let mut rows: Vec<&Code> = codes.iter().collect();
    rows.sort_by_key(|code| code.status);
    let mut table = "| status | code | meaning | what to do |\n|---|---|---|---|\n".to_owned();
    for Code { name, status, meaning, next_step } in rows {
        table.push_str(&format!("| {status} | `{name}` | {} | {} |\n", cell(meaning), cell(next_step)));
    }
    table
}

/// A sentence as a cell: without its full stop.
fn cell(sentence: &str) -> &str {
    sentence.strip_suffix('.').unwrap_or(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_parsed_from_doc_comments() {
        let source = "error_codes! {
            /// It is
            /// wrong.
            ///
            /// Next step: fix it.
            BadRequest = 400,
        }";
        let codes = parse(source).unwrap();
        assert!(table(&codes).ends_with("| 400 | `bad_request` | It is wrong | fix it |\n"), "{codes:?}");
        assert!(parse("error_codes! {\n/// Wrong.\nBadRequest = 400,\n}").is_err());
    }
}
