//! Paths in unparsed tokens: the arguments of macros and attributes.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use super::modules::Mention;

/// Every path in these tokens. A text that is a path counts as one: `#[serde(with = "crate::time")]`.
pub fn mentions(tokens: TokenStream) -> Vec<Mention> {
    let mut scan = Scan::default();
    scan.tokens(tokens);
    scan.found
}

#[derive(Default)]
struct Scan {
    found: Vec<Mention>,
    current: Option<Mention>,
    /// Colons since the last identifier.
    colons: usize,
}

impl Scan {
    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), ident.span().start().line);
                    match &mut self.current {
                        Some(mention) if self.colons == 2 => mention.segments.push(name),
                        // A path that begins with colons names another crate.
                        None if self.colons == 2 => {}
                        _ => {
                            self.end();
                            self.current = Some(Mention { segments: vec![name], line });
                        }
                    }
                    self.colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    let joins = mark.spacing() == Spacing::Joint || self.colons == 1;
                    self.colons = if joins { self.colons + 1 } else { 3 };
                }
                TokenTree::Punct(_) => self.end(),
                TokenTree::Literal(literal) => {
                    self.end();
                    self.text(&literal.to_string(), literal.span().start().line);
                }
                TokenTree::Group(group) => {
                    self.end();
                    // Invisible delimiters come from expansions, which are not read here.
                    if group.delimiter() != Delimiter::None {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.end();
    }

    fn text(&mut self, literal: &str, line: usize) {
        let text = literal.trim_matches('"');
        let is_path = ["crate::", "super::", "self::"].iter().any(|start| text.starts_with(start))
            && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
        if is_path {
            let segments = text.split("::").map(str::to_owned).collect();
            self.found.push(Mention { segments, line });
        }
    }

    fn end(&mut self) {
        self.found.extend(self.current.take());
        self.colons = 0;
    }
}
