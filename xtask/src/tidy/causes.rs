//! Texts of errors that repeat their cause.
//!
//! Readers of an error see its whole chain. A `thiserror` text that formats a field marked
//! `#[source]` or `#[from]` would print the cause twice, so it must omit the cause, or be
//! `transparent`.

use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, Field, Fields, Meta};

/// Every text in a file that contains its cause, as `path:line: what`.
pub fn problems(path: &Path, text: &str) -> Result<Vec<String>> {
    if !text.contains("#[error(") {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text).with_context(|| format!("parse {}", path.display()))?;
    let mut search = Search::default();
    search.visit_file(&file);
    let show = |(line, field): (usize, String)| {
        format!("{}:{line}: the text repeats its cause; leave `{{{field}}}` out of it", path.display())
    };
    Ok(search.found.into_iter().map(show).collect())
}

#[derive(Default)]
struct Search {
    found: Vec<(usize, String)>,
}

impl Search {
    fn check(&mut self, attributes: &[Attribute], fields: &Fields) {
        let Some(text) = attributes.iter().find_map(error_text) else { return };
        for (at, field) in fields.iter().enumerate() {
            if !is_cause(field) {
                continue;
            }
            let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
            if text.names.contains(&name) {
                self.found.push((text.line, name));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Search {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check(&item.attrs, &item.fields);
        syn::visit::visit_item_struct(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.check(&variant.attrs, &variant.fields);
        syn::visit::visit_variant(self, variant);
    }
}

/// `thiserror` takes a field named `source` for the cause, marked or not.
fn is_cause(field: &Field) -> bool {
    let is_marked =
        field.attrs.iter().any(|one| one.path().is_ident("source") || one.path().is_ident("from"));
    is_marked || field.ident.as_ref().is_some_and(|name| name == "source")
}

struct Text {
    line: usize,
    /// Fields that it formats.
    names: Vec<String>,
}

/// The text of `#[error("...", arguments)]`; none of a transparent error.
fn error_text(attribute: &Attribute) -> Option<Text> {
    let Meta::List(list) = &attribute.meta else { return None };
    if !list.path.is_ident("error") {
        return None;
    }
    let mut tokens = list.tokens.clone().into_iter();
    let TokenTree::Literal(literal) = tokens.next()? else { return None };
    let template = syn::parse_str::<syn::LitStr>(&literal.to_string()).ok()?;
    let mut names = placeholders(&template.value());
    names.extend(arguments(tokens.collect()));
    Some(Text { line: literal.span().start().line, names })
}

/// Names between braces: `{source}`, `{0:?}`. Doubled braces are text.
fn placeholders(template: &str) -> Vec<String> {
    let mut names = Vec::new();
    let plain = template.replace("{{", "").replace("}}", "");
    for part in plain.split('{').skip(1) {
        let inside = part.split('}').next().unwrap_or_default();
        names.push(inside.split(':').next().unwrap_or_default().trim().to_owned());
    }
    names
}

/// Fields that the arguments name: `.source`, `.0` and plain names, where nothing is called on
/// them. A method of the cause returns something other than its text.
fn arguments(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_dot =
        |tree: Option<&TokenTree>| matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == '.');
    let is_edge =
        |tree: Option<&TokenTree>| matches!(tree, None | Some(TokenTree::Punct(_))) && !is_dot(tree);
    let mut names = Vec::new();
    for (at, tree) in tokens.iter().enumerate() {
        let (before, after) = (at.checked_sub(1).and_then(|at| tokens.get(at)), tokens.get(at + 1));
        // The name of a method, or something that a method is called on, a path or a named argument.
        let of_value = is_dot(before) && at >= 2 && !is_edge(tokens.get(at - 2));
        if of_value
            || !is_edge(after)
            || matches!(after, Some(TokenTree::Punct(punct)) if "=:".contains(punct.as_char()))
        {
            continue;
        }
        match tree {
            TokenTree::Ident(name) => names.push(name.to_string()),
            TokenTree::Literal(index) if is_dot(before) => names.push(index.to_string()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        problems(Path::new("a.rs"), text).unwrap()
    }

    #[test]
    fn an_error_message_repeating_its_cause_is_found() {
        for text in [
            "#[derive(Error)] enum E { #[error(\"{action}: {source}\")] Io { action: u8, source: Io } }",
            "#[derive(Error)] enum E { #[error(\"{action}: {reason:?}\")] Io { #[source] reason: Io } }",
            "#[derive(Error)] enum E { #[error(\"cannot start: {0}\")] Start(#[from] Io) }",
            "#[derive(Error)] #[error(\"lost: {0}\")] struct Lost(#[source] Io);",
            "#[derive(Error)] enum E { #[error(\"{}: {}\", .path, .source)] Io { path: u8, source: Io } }",
            "#[derive(Error)] enum E { #[error(\"{}\", .1)] Io(u8, #[source] Io) }",
            "mod inner { #[error(\"{why}\", why = source)] struct Lost { source: Io } }",
        ] {
            assert_eq!(lines(text).len(), 1, "{text}");
        }
        let text =
            "#[derive(Error)]\nenum E {\n    #[error(\n        \"x: {0}\"\n    )]\n    Io(#[from] Io),\n}";
        assert_eq!(lines(text), ["a.rs:4: the text repeats its cause; leave `{0}` out of it"]);
    }

    #[test]
    fn error_texts_without_their_cause_are_allowed() {
        for text in [
            "enum E { #[error(transparent)] Io(#[from] Io) }",
            "enum E { #[error(\"cannot {action}\")] Io { action: u8, source: Io } }",
            "enum E { #[error(\"{0}\")] Text(String) }",
            "enum E { #[error(\"{{0}} is text\")] Io(#[source] Io) }",
            "enum E { #[error(\"{}\", path.display())] Io { path: u8, source: Io } }",
            "enum E { #[error(\"code {}\", .source.code())] Io { source: Io } }",
            "enum E { #[error(\"status {}\", source.status)] Io { source: Io } }",
            "struct Plain { source: Io }",
        ] {
            assert_eq!(lines(text), [] as [String; 0], "{text}");
        }
    }
}
