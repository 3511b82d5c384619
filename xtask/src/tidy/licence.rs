//! Licence expressions, as SPDX has them: names with `AND`, `OR`, `WITH` and parentheses. An old
//! form has `/` for `OR`.

/// Returns whether a licensee can choose among allowed licences only. An expression that cannot be
/// read is not allowed.
pub fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    reader.any() == Some(true) && reader.words.is_empty()
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Reader<'_> {
    fn any(&mut self) -> Option<bool> {
        let mut allowed = self.all()?;
        while self.take("OR") {
            allowed |= self.all()?;
        }
        Some(allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut allowed = self.one()?;
        while self.take("AND") {
            allowed &= self.one()?;
        }
        Some(allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let allowed = self.any()?;
            return self.take(")").then_some(allowed);
        }
        let (name, rest) = self.words.split_first()?;
        self.words = rest;
        let mut name = (*name).to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.words.split_first()?;
            self.words = rest;
            name = format!("{name} WITH {exception}");
        }
        Some(self.allowed.contains(&name))
    }

    fn take(&mut self, word: &str) -> bool {
        let rest = self.words.split_first().filter(|(first, _)| **first == word).map(|(_, rest)| rest);
        if let Some(rest) = rest {
            self.words = rest;
        }
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, expect: bool) {
        let allowed = ["MIT", "Apache-2.0", "ISC"].map(str::to_owned);
        assert_eq!(is_allowed(expression, &allowed), expect, "{expression}");
    }

    #[test]
    fn licence_expressions_are_evaluated() {
        check("MIT", true);
        check("GPL-3.0", false);
        check("GPL-3.0 OR MIT", true);
        check("GPL-3.0/MIT", true);
        check("GPL-3.0 AND MIT", false);
        check("(MIT OR GPL-3.0) AND ISC", true);
        check("MIT OR GPL-3.0 AND ISC", true);
        check("(MIT OR ISC) AND GPL-3.0", false);
        check("Apache-2.0 WITH LLVM-exception", false);
        check("Apache-2.0 WITH LLVM-exception OR MIT", true);
        for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "MIT WITH"] {
            check(broken, false);
        }
    }
}
