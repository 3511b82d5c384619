//! Exceptions that are still allowed, and may only shrink.

/// Number of places that are named.
const SHOWN: usize = 10;

/// The problem, if the places are not exactly as many as the table in `file` allows: more are a
/// regression, and a lower number must be recorded, so that it cannot rise again.
pub fn problem(rule: &str, allowed: usize, places: &[String], file: &str) -> Option<String> {
    let found = places.len();
    if found < allowed {
        return Some(format!("{rule}: {found} places are left; lower the {allowed} in {file}"));
    }
    if found == allowed {
        return None;
    }
    let mut problem = format!("{rule}: {found} places instead of {allowed}");
    for place in places.iter().take(SHOWN) {
        problem.push_str(&format!("\n    {place}"));
    }
    if found > SHOWN {
        problem.push_str(&format!("\n    and {} more", found - SHOWN));
    }
    Some(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_must_match_the_exact_count() {
        let places = vec!["a.rs:1".to_owned(), "a.rs:2".to_owned()];
        assert_eq!(problem("rule", 2, &places, "table.rs"), None);
        let more = problem("rule", 1, &places, "table.rs").unwrap();
        assert_eq!(more, "rule: 2 places instead of 1\n    a.rs:1\n    a.rs:2");
        assert!(problem("rule", 3, &places, "table.rs").unwrap().contains("lower the 3 in table.rs"));
    }
}
