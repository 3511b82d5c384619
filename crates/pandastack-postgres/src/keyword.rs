//! The first keyword of a statement. No other SQL is parsed here.

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

/// Text after the comment at the start of `text`. Comments nest.
fn after_comment(text: &str) -> &str {
    // Byte by byte and each once: a text may open a comment at every other byte and close none.
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(pair) = text.as_bytes().get(at..at + 2) {
        at += match pair {
            b"/*" => {
                depth += 1;
                2
            }
            b"*/" => {
                depth = depth.saturating_sub(1);
                2
            }
            _ => 1,
        };
        if depth == 0 {
            return text.get(at..).unwrap_or_default();
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_keyword_is_found_after_comments() {
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
