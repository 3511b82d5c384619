//! Values of the numeric constants that messages name.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprLit, Lit};

/// Numbers by the name of their constant. Names with several values are left out.
pub type Constants = BTreeMap<String, u64>;

/// The constants of all files.
pub fn collect<'a>(files: impl Iterator<Item = &'a syn::File>) -> Constants {
    let mut reader = Reader::default();
    files.for_each(|file| reader.visit_file(file));
    // A constant may name others, wherever they are.
    let mut known: BTreeMap<String, Option<u64>> = BTreeMap::new();
    for _ in 0..2 {
        for (name, value) in &reader.0 {
            let value = evaluate(value, &known);
            known
                .entry(name.clone())
                .and_modify(|old| *old = old.filter(|old| Some(*old) == value))
                .or_insert(value);
        }
        known.retain(|_, value| value.is_some());
    }
    known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[derive(Default)]
struct Reader<'a>(Vec<(String, &'a Expr)>);

impl<'a> Visit<'a> for Reader<'a> {
    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.0.push((item.ident.to_string(), &item.expr));
        visit::visit_item_const(self, item);
    }
}

fn evaluate(value: &Expr, known: &BTreeMap<String, Option<u64>>) -> Option<u64> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Paren(inner) => evaluate(&inner.expr, known),
        Expr::Cast(cast) => evaluate(&cast.expr, known),
        Expr::Path(path) => known.get(&path.path.segments.last()?.ident.to_string()).copied()?,
        Expr::Binary(binary) => {
            let (left, right) = (evaluate(&binary.left, known)?, evaluate(&binary.right, known)?);
            match binary.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Shl(_) => left.checked_shl(u32::try_from(right).ok()?),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_evaluated() {
        let source = "const A: u64 = 2 << 10; const B: usize = 3 * A as usize; const C: &str = \"x\";
            mod one { const D: u8 = 1; } mod other { const D: u8 = 2; }";
        let file = syn::parse_file(source).unwrap();
        let expect = [("A".to_owned(), 2048), ("B".to_owned(), 6144)];
        assert_eq!(collect(std::iter::once(&file)), Constants::from(expect));
    }
}
