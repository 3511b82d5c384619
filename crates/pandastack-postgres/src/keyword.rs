//! The word that a statement begins with. Nothing else of SQL is understood here.

/// The first word of a statement in capital letters, without the comments, spaces and empty statements before it.
pub(crate) fn keyword(sql: &str) -> String {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c', ';']);
        rest = if rest.starts_with("--") {
            rest.split_once(['\n', '\r']).map_or("", |(_, after)| after)
        } else if rest.starts_with("/*") {
            after_comment(rest)
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            return rest[..end].to_ascii_uppercase();
        };
    }
}

/// What follows a comment that `text` begins with. They nest.
fn after_comment(text: &str) -> &str {
    let (mut depth, mut rest) = (0_usize, text);
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("*/")).min() {
        depth = if rest[at..].starts_with("/*") { depth + 1 } else { depth.saturating_sub(1) };
        rest = &rest[at + 2..];
        if depth == 0 {
            return rest;
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_found_behind_comments() {
        for (sql, expect) in [
            ("select 1", "SELECT"),
            ("  Insert into t", "INSERT"),
            ("-- COPY\n;\tupdate t", "UPDATE"),
            ("/* a /* b */ COPY */delete from t", "DELETE"),
            ("/**/copy(select 1) to stdout", "COPY"),
            ("(select 1)", ""),
            ("-- nothing", ""),
            ("/* open", ""),
            ("/*é*/ é", ""),
            ("", ""),
        ] {
            assert_eq!(keyword(sql), expect, "{sql}");
        }
    }
}
