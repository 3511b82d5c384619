//! Expressions that construct an error: which code it has, and which argument is its message.

use std::collections::BTreeMap;

use syn::{Expr, ExprCall, ExprLit, Lit, Pat};

use super::codes::snake_case;

/// Codes by enum and variant, for errors that get their code from a `match`.
pub type VariantCodes = BTreeMap<(String, String), String>;

/// Names of HTTP statuses that errors of other protocols have.
const STATUSES: [(&str, &str); 9] = [
    ("BAD_REQUEST", "400"),
    ("UNAUTHORIZED", "401"),
    ("FORBIDDEN", "403"),
    ("NOT_FOUND", "404"),
    ("METHOD_NOT_ALLOWED", "405"),
    ("CONFLICT", "409"),
    ("NOT_IMPLEMENTED", "501"),
    ("BAD_GATEWAY", "502"),
    ("SERVICE_UNAVAILABLE", "503"),
];

/// The call of a constructor.
pub struct ConstructedError<'a> {
    pub code: String,
    pub message: &'a Expr,
    /// Whether the message is only a noun: the kind of resource that was not found.
    pub is_noun: bool,
}

/// Error that a call constructs, if any.
pub fn constructed<'a>(call: &'a ExprCall, coded: &VariantCodes) -> Option<ConstructedError<'a>> {
    let (of, name) = last_two(&call.func)?;
    let arguments: Vec<&Expr> = call.args.iter().collect();
    let first = *arguments.first()?;
    let found =
        |code: &str, message| Some(ConstructedError { code: code.to_owned(), message, is_noun: false });
    match (of.as_str(), name.as_str()) {
        (_, "new") => found(&code_of(first)?, arguments.get(1)?),
        ("Error", "bad_request" | "conflict") => found(&name, first),
        ("Error", "not_found") => Some(ConstructedError { is_noun: true, ..found("not_found", first)? }),
        ("RestError", "bad_request") => found("400", first),
        ("RpcError", "invalid") => found("invalid_argument", first),
        _ => found(coded.get(&(of, name))?, first),
    }
}

/// The code that an expression names: of the API, of HTTP, of Connect, or an SQLSTATE.
pub fn code_of(expression: &Expr) -> Option<String> {
    if let Expr::Lit(ExprLit { lit: Lit::Str(state), .. }) = expression {
        return Some(state.value()).filter(|state| state.len() == 5);
    }
    let (of, name) = last_two(expression)?;
    match of.as_str() {
        "ErrorCode" | "RpcCode" => Some(snake_case(&name)),
        "StatusCode" => STATUSES.iter().find(|(known, _)| *known == name).map(|(_, code)| (*code).to_owned()),
        _ => None,
    }
}

/// The last two names of a path.
fn last_two(expression: &Expr) -> Option<(String, String)> {
    match expression {
        Expr::Path(path) => ends_of(&path.path),
        _ => None,
    }
}

fn ends_of(path: &syn::Path) -> Option<(String, String)> {
    let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
    let last = names.next()?;
    Some((names.next()?, last))
}

/// The variants that a pattern names. `Self` is `own`.
pub fn variants(pattern: &Pat, own: Option<&str>) -> Vec<(String, String)> {
    let path = match pattern {
        Pat::Or(or) => return or.cases.iter().flat_map(|case| variants(case, own)).collect(),
        Pat::Reference(reference) => return variants(&reference.pat, own),
        Pat::Paren(paren) => return variants(&paren.pat, own),
        Pat::Path(path) => &path.path,
        Pat::TupleStruct(tuple) => &tuple.path,
        Pat::Struct(fields) => &fields.path,
        _ => return Vec::new(),
    };
    let named = ends_of(path).map(|(of, name)| match own {
        Some(own) if of == "Self" => (own.to_owned(), name),
        _ => (of, name),
    });
    named.into_iter().collect()
}
