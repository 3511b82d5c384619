//! Claims of SECURITY.md: each names the test that proves it, and that test exists.

use std::collections::BTreeSet;

/// Page with the claims.
pub const PAGE: &str = "SECURITY.md";

/// Names of tests in the sources.
#[derive(Default)]
pub struct Tests(BTreeSet<String>);

impl Tests {
    /// Records the functions of a file.
    pub fn read(&mut self, text: &str) {
        for line in text.lines().map(str::trim_start) {
            let words = ["fn ", "async fn ", "pub(super) async fn ", "def "];
            let rest = words.iter().find_map(|word| line.strip_prefix(word));
            let name = rest.and_then(|rest| rest.split(['(', '<']).next());
            self.0.extend(name.map(str::to_owned));
        }
    }

    /// Rows of the page that name no test, or one that does not exist.
    pub fn problems(&self, page: &str) -> Vec<String> {
        let rows = page.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
        let claims = rows.filter(|(_, line)| !line.starts_with("| attacker"));
        claims.filter_map(|(at, line)| Some(format!("{PAGE}:{}: {}", at + 1, self.problem(line)?))).collect()
    }

    fn problem(&self, row: &str) -> Option<String> {
        let proof = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        // A recipe is proven by its own build.
        if proof.starts_with("recipe ") {
            return None;
        }
        let named: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            return Some("the claim names no test".to_owned());
        }
        let missing = named.into_iter().find(|name| !self.0.contains(*name))?;
        Some(format!("there is no test `{missing}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_security_claim_without_a_test_is_reported() {
        let mut tests = Tests::default();
        tests.read("    async fn one_is_safe() {\ndef test_two(a: int):\n");
        let page = "| attacker | asset | wall | test |\n|---|---|---|---|\n\
                    | a | b | c | `one_is_safe`, `test_two` |\n| a | b | c | `gone` |\n\
                    | a | b | c | by hand |\n| a | b | c | recipe `x`, `verify` |\n";
        let problems = tests.problems(page);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("SECURITY.md:4") && problems[0].contains("gone"), "{problems:?}");
    }
}
