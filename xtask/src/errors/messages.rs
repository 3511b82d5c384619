//! The messages of the errors that a source constructs.
//!
//! Finds texts and format strings, also through a variable, a constant, or an argument of a
//! function or closure of the same file. A message that is built in another way is not found.

use std::collections::{BTreeMap, BTreeSet};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Pat, Stmt, Token};

use super::calls::{VariantCodes, code_of, constructed, variants};
use super::constants::Constants;
use super::template;

/// Fewest words of a message, without its placeholders.
const WORDS_MIN: usize = 2;

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    code: String,
    text: String,
}

impl Message {
    /// The row in markdown.
    pub fn row(&self) -> String {
        format!("| `{}` | `` {} `` |\n", self.code, self.text.replace('|', "\\|"))
    }
}

/// The code of each enum's variants, where a `match` gives them one.
pub fn codes_of_variants<'a>(files: impl Iterator<Item = &'a syn::File>) -> VariantCodes {
    let mut reader = CodeReader::default();
    files.for_each(|file| reader.visit_file(file));
    reader.coded
}

#[derive(Default)]
struct CodeReader {
    coded: VariantCodes,
    own: Option<String>,
}

impl<'a> Visit<'a> for CodeReader {
    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        self.own = name_of_type(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.own = None;
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let code = match &*arm.body {
            Expr::Call(call) => constructed(call, &VariantCodes::new()).map(|constructed| constructed.code),
            body => code_of(body),
        };
        if let Some(code) = code {
            let variants = variants(&arm.pat, self.own.as_deref());
            self.coded.extend(variants.into_iter().map(|variant| (variant, code.clone())));
        }
        visit::visit_arm(self, arm);
    }
}

fn name_of_type(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// The messages of a file.
pub fn collect(file: &syn::File, coded: &VariantCodes, constants: &Constants) -> BTreeSet<Message> {
    let (texts, frames) = (BTreeMap::new(), BTreeMap::new());
    let (found, filled) = (BTreeSet::new(), BTreeSet::new());
    let mut reader = Reader { coded, constants, own: None, texts, frames, found, filled };
    // Two passes: functions that pass a message on, and constants, may be defined after their use.
    for _ in 0..2 {
        reader.found.clear();
        reader.visit_file(file);
    }
    let Reader { mut found, filled, .. } = reader;
    found.retain(|message| words(&message.text) >= WORDS_MIN && !filled.contains(message));
    found
}

/// A function or closure that puts its argument into a message.
#[derive(Clone)]
struct Frame {
    parameter: usize,
    name: String,
    message: Message,
}

struct Reader<'c> {
    coded: &'c VariantCodes,
    constants: &'c Constants,
    /// The type whose `impl` this is.
    own: Option<String>,
    /// Texts by variable or constant.
    texts: BTreeMap<String, Vec<String>>,
    frames: BTreeMap<String, Vec<Frame>>,
    found: BTreeSet<Message>,
    /// Messages with a parameter that calls replace by a text.
    filled: BTreeSet<Message>,
}

impl Reader<'_> {
    fn record(&mut self, code: &str, texts: impl IntoIterator<Item = String>) {
        self.found.extend(texts.into_iter().map(|text| Message { code: code.to_owned(), text }));
    }

    /// The texts that an expression may be.
    fn texts(&self, expression: &Expr) -> Vec<String> {
        match expression {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => vec![text.value()],
            Expr::Macro(call) if call.mac.path.is_ident("format") => {
                self.format(call.mac.tokens.clone()).into_iter().collect()
            }
            Expr::MethodCall(call) if call.method == "to_owned" || call.method == "into" => {
                self.texts(&call.receiver)
            }
            Expr::Reference(reference) => self.texts(&reference.expr),
            Expr::Paren(inner) => self.texts(&inner.expr),
            Expr::Block(block) => self.last(&block.block),
            Expr::If(choice) => {
                let other = choice.else_branch.as_ref().map(|(_, other)| self.texts(other));
                [self.last(&choice.then_branch), other.unwrap_or_default()].concat()
            }
            Expr::Match(choice) => choice.arms.iter().flat_map(|arm| self.texts(&arm.body)).collect(),
            Expr::Path(path) => {
                let name = path.path.get_ident().map(ToString::to_string);
                name.and_then(|name| self.texts.get(&name)).cloned().unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    fn last(&self, block: &syn::Block) -> Vec<String> {
        match block.stmts.last() {
            Some(Stmt::Expr(last, None)) => self.texts(last),
            _ => Vec::new(),
        }
    }

    /// Renders a format string and its arguments. Variables with known texts are substituted.
    fn format(&self, tokens: proc_macro2::TokenStream) -> Option<String> {
        use syn::parse::Parser;
        let arguments = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens).ok()?;
        let mut arguments = arguments.into_iter();
        let Some(Expr::Lit(ExprLit { lit: Lit::Str(format), .. })) = arguments.next() else { return None };
        let mut shown = template::show(&format.value(), &arguments.collect::<Vec<_>>(), self.constants);
        for (name, texts) in &self.texts {
            if let [text] = texts.as_slice() {
                shown = shown.replace(&format!("<{name}>"), text);
            }
        }
        Some(shown)
    }

    /// Visits a body whose parameters are texts, and keeps messages with a parameter as frames of `name`.
    fn body(&mut self, name: &str, parameters: &[Option<String>], visit: impl FnOnce(&mut Self)) {
        let (texts, found) = (self.texts.clone(), std::mem::take(&mut self.found));
        for parameter in parameters.iter().flatten() {
            self.texts.insert(parameter.clone(), vec![format!("<{parameter}>")]);
        }
        visit(self);
        self.texts = texts;
        let inside = std::mem::replace(&mut self.found, found);
        let mut frames = Vec::new();
        for message in inside {
            let passed = parameters.iter().enumerate().find_map(|(index, parameter)| {
                let name = format!("<{}>", parameter.as_ref()?);
                message.text.contains(&name).then_some((index, name))
            });
            if let Some((parameter, name)) = passed {
                frames.push(Frame { parameter, name, message: message.clone() });
            }
            self.found.insert(message);
        }
        if !frames.is_empty() {
            self.frames.insert(name.to_owned(), frames);
        }
    }

    /// Inserts the arguments of a call into the frames of the called functions.
    fn fill(&mut self, call: &syn::ExprCall) {
        let Expr::Path(path) = &*call.func else { return };
        let Some(name) = path.path.get_ident().map(ToString::to_string) else { return };
        for frame in self.frames.get(&name).cloned().unwrap_or_default() {
            let argument = call.args.get(frame.parameter);
            let mut texts = argument.map(|argument| self.texts(argument)).unwrap_or_default();
            // A parameter of the caller itself adds nothing to the frame.
            texts.retain(|text| words(text) > 0);
            let filled = texts.iter().map(|text| frame.message.text.replace(&frame.name, text));
            self.record(&frame.message.code, filled);
            if !texts.is_empty() {
                self.filled.insert(frame.message);
            }
        }
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        self.own = name_of_type(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.own = None;
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        let parameters = parameters(&item.sig);
        self.body(&item.sig.ident.to_string(), &parameters, |reader| reader.visit_block(&item.block));
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        let parameters = parameters(&item.sig);
        self.body(&item.sig.ident.to_string(), &parameters, |reader| reader.visit_block(&item.block));
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        let texts = self.texts(&item.expr);
        if !texts.is_empty() {
            self.texts.insert(item.ident.to_string(), texts);
        }
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        let name = name_of_pattern(&local.pat);
        let (Some(name), Some(init)) = (name, &local.init) else { return visit::visit_local(self, local) };
        if let Expr::Closure(closure) = &*init.expr {
            let parameters: Vec<_> = closure.inputs.iter().map(name_of_pattern).collect();
            return self.body(&name, &parameters, |reader| reader.visit_expr(&closure.body));
        }
        let texts = self.texts(&init.expr);
        if !texts.is_empty() {
            self.texts.insert(name, texts);
        }
        visit::visit_local(self, local);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let own = self.own.clone();
        for variant in variants(&arm.pat, own.as_deref()) {
            if let Some(code) = self.coded.get(&variant).filter(|_| own.as_ref() == Some(&variant.0)) {
                let sentences = self.texts(&arm.body).into_iter();
                self.record(code, sentences.filter(|text| !text.starts_with(char::is_uppercase)));
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        for variant in &item.variants {
            let key = (item.ident.to_string(), variant.ident.to_string());
            let Some(code) = self.coded.get(&key) else { continue };
            let attributes = variant.attrs.iter().filter(|attribute| attribute.path().is_ident("error"));
            let lists = attributes.filter_map(|attribute| attribute.meta.require_list().ok());
            let texts: Vec<_> = lists.filter_map(|list| self.format(list.tokens.clone())).collect();
            self.record(code, texts);
        }
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        match constructed(call, self.coded) {
            Some(error) => {
                let texts = self.texts(error.message).into_iter();
                let noun =
                    |text: String| if error.is_noun { format!("{text} `<id>` not found") } else { text };
                self.record(&error.code, texts.map(noun).collect::<Vec<_>>());
            }
            None => self.fill(call),
        }
        visit::visit_expr_call(self, call);
    }
}

fn parameters(signature: &syn::Signature) -> Vec<Option<String>> {
    let typed = signature.inputs.iter().filter_map(|input| match input {
        syn::FnArg::Typed(typed) => Some(name_of_pattern(&typed.pat)),
        syn::FnArg::Receiver(_) => None,
    });
    typed.collect()
}

fn name_of_pattern(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(ident) => Some(ident.ident.to_string()),
        Pat::Type(typed) => name_of_pattern(&typed.pat),
        _ => None,
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    let lists = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    lists.filter(|list| list.path.is_ident("cfg")).any(|list| list.tokens.to_string() == "test")
}

/// Number of words of a text, placeholders aside.
fn words(text: &str) -> usize {
    let is_word = |word: &&str| word.starts_with(char::is_alphabetic);
    text.split(['`', ' ', '"', '(', ')']).filter(is_word).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expect: &[(&str, &str)]) {
        let file = syn::parse_file(source).unwrap();
        let coded = codes_of_variants(std::iter::once(&file));
        let found = collect(&file, &coded, &Constants::new());
        let found: Vec<_> =
            found.iter().map(|message| (message.code.as_str(), message.text.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn constructed_errors_are_found() {
        check(
            r#"fn a(id: &Id) -> Result<()> {
                let message = format!("app `{id}` sleeps");
                if x { return Err(Error::conflict(message)) }
                let late = || Error::new(ErrorCode::ExecTimeout, "it took too long");
                Error::not_found("app", id)
            }
            #[cfg(test)] mod tests { fn b() { Error::conflict("not this one") } }"#,
            &[
                ("conflict", "app `<id>` sleeps"),
                ("exec_timeout", "it took too long"),
                ("not_found", "app `<id>` not found"),
            ],
        );
    }

    #[test]
    fn an_error_message_passed_as_an_argument_is_found() {
        check(
            r#"fn a() {
                let refuse = |why: &str| Error::bad_request(format!("`{field}` {why}"));
                refuse("is not a path");
                full("too many calls");
            }
            fn full(what: &str) -> Error {
                let next = "wait a moment";
                Error::new(ErrorCode::NoCapacity, format!("{what}; {next}"))
            }"#,
            &[("bad_request", "`<field>` is not a path"), ("no_capacity", "too many calls; wait a moment")],
        );
    }

    #[test]
    fn error_enum_codes_are_read_from_match_arms() {
        check(
            r#"enum Refused {
                #[error("`{0}` is too large")] Large(String),
                #[error("nobody maps this one")] Odd,
                #[error("{0}")] Held(String),
            }
            impl Refused {
                fn code(&self) -> ErrorCode {
                    match self { Self::Large(_) | Refused::Held(_) => ErrorCode::Conflict, _ => other() }
                }
            }
            fn a() { Refused::Held("someone has it".to_owned()) }"#,
            &[("conflict", "`<value>` is too large"), ("conflict", "someone has it")],
        );
    }
}
