//! Format strings as readers of the page see them: `{id}` is `<id>`, a known constant is its value.

use syn::Expr;

use super::constants::Constants;

/// Methods that change only a value's representation.
const VIEWS: [&str; 17] = [
    "as_str",
    "as_secs",
    "as_millis",
    "as_deref",
    "body_text",
    "chars",
    "clone",
    "collect",
    "display",
    "escape_debug",
    "join",
    "len",
    "take",
    "to_string",
    "trim",
    "unwrap_or",
    "unwrap_or_default",
];

/// A format string with its placeholders shown. `arguments` are what follows it in the macro.
pub fn show(format: &str, arguments: &[Expr], constants: &Constants) -> String {
    let (mut shown, mut rest, mut next) = (String::new(), format, 0);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(at);
        shown.push_str(before);
        if brace.starts_with("{{") || brace.starts_with("}}") {
            shown.push_str(&brace[..1]);
            rest = &brace[2..];
            continue;
        }
        let Some((inside, after)) = brace[1..].split_once('}') else { break };
        rest = after;
        let name = inside.split(':').next().unwrap_or_default();
        let argument = match name.parse::<usize>() {
            Ok(index) => arguments.get(index),
            Err(_) if name.is_empty() => {
                next += 1;
                arguments.get(next - 1)
            }
            Err(_) => arguments.iter().find_map(|argument| named(argument, name)),
        };
        let plain =
            || if name.is_empty() || name.parse::<usize>().is_ok() { "value" } else { name }.to_owned();
        shown.push_str(&placeholder(&argument.and_then(name_of).unwrap_or_else(plain), constants));
    }
    shown + rest
}

fn placeholder(name: &str, constants: &Constants) -> String {
    match constants.get(name) {
        Some(value) => value.to_string(),
        None => format!("<{}>", name.to_lowercase()),
    }
}

/// The value of `name = value`.
fn named<'a>(argument: &'a Expr, name: &str) -> Option<&'a Expr> {
    match argument {
        Expr::Assign(assign) if name_of(&assign.left).is_some_and(|left| left == name) => Some(&assign.right),
        _ => None,
    }
}

/// Name of an argument: its variable, field or method.
fn name_of(argument: &Expr) -> Option<String> {
    match argument {
        Expr::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Expr::Field(field) => match &field.member {
            syn::Member::Named(name) => Some(name.to_string()),
            syn::Member::Unnamed(_) => name_of(&field.base),
        },
        Expr::MethodCall(call) if VIEWS.iter().any(|view| call.method == view) => name_of(&call.receiver),
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Reference(reference) => name_of(&reference.expr),
        Expr::Unary(unary) => name_of(&unary.expr),
        Expr::Call(call) => name_of(&call.func),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_named() {
        let arguments = ["app.name", "LIMIT", "self.wait.as_secs()", "x = of(y)"];
        let arguments = arguments.map(|argument| syn::parse_str::<Expr>(argument).unwrap());
        let constants = Constants::from([("LIMIT".to_owned(), 7)]);
        let check = |format, expect| assert_eq!(show(format, &arguments, &constants), expect);
        check("`{}` {} {:.1} s", "`<name>` 7 <wait> s");
        check("{LIMIT} {OTHER} {0} {x} {id:?} {{}}", "7 <other> <name> <of> <id> {}");
        check("{4}", "<value>");
    }
}
