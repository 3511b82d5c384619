//! Quoting and variables.

/// Reason why a word could not be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// A `${` without `}`.
    #[error("`{0}` has no closing brace")]
    Unclosed(String),
    /// A modifier of `${name...}` that is not supported.
    #[error("`${{{0}}}` uses a modifier that is not supported; use :-, :+, - or +")]
    Modifier(String),
    /// `${name:?message}` without a value.
    #[error("variable `{name}` is not set: {message}")]
    Unset {
        /// The variable.
        name: String,
        /// Message that the Dockerfile's author wrote.
        message: String,
    },
    /// `${a:-${b:-...` is nested too deeply.
    #[error(
        "variables are nested more than {EXPAND_DEPTH_MAX} levels deep; use fewer `${{...}}` in `${{...}}`"
    )]
    TooDeep,
    /// Values are too long together.
    #[error("expanded variables have more than {0} bytes; use shorter values")]
    TooLong(usize),
}

/// Bytes of variables' values in one expansion. Beyond it: an error.
pub const EXPANDED_BYTES_MAX: usize = 64 * 1024;
/// Levels of `${a:-${b:-...}}`. Beyond it: an error.
pub const EXPAND_DEPTH_MAX: usize = 16;

/// Splits at white space outside quotes; quotes and escapes stay.
pub(crate) fn split(text: &str, escape: char) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match quote {
            None if char.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if char == '\'' || char == '"' => quote = Some(char),
            Some(open) if open == char => quote = None,
            _ => {}
        }
        word.push(char);
        if char == escape && quote != Some('\'') {
            word.extend(chars.next());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Removes quotes and replaces variables, as a shell would. Unknown variables are empty.
pub fn expand(
    word: &str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ExpandError> {
    Reader { rest: word, escape, quotes: true, depth: 0, left: EXPANDED_BYTES_MAX, lookup }.run(None)
}

/// Replaces variables in a heredoc. Quotes are ordinary characters, and `\` always is the escape character.
pub fn expand_text(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    Reader { rest: text, escape: '\\', quotes: false, depth: 0, left: EXPANDED_BYTES_MAX, lookup }.run(None)
}

struct Reader<'a> {
    rest: &'a str,
    escape: char,
    /// Whether quotes are special.
    quotes: bool,
    /// Number of open `${`.
    depth: usize,
    /// Bytes that variables may still have.
    left: usize,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let char = self.rest.chars().next()?;
        self.rest = &self.rest[char.len_utf8()..];
        Some(char)
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, ExpandError> {
        let value = (self.lookup)(name);
        let bytes = value.as_ref().map_or(0, String::len);
        self.left = self.left.checked_sub(bytes).ok_or(ExpandError::TooLong(EXPANDED_BYTES_MAX))?;
        Ok(value)
    }

    /// Reads up to `end`, or to the end of the text.
    fn run(&mut self, end: Option<char>) -> Result<String, ExpandError> {
        let mut out = String::new();
        let mut in_quotes = false;
        while let Some(char) = self.next() {
            match char {
                '}' if end == Some('}') && !in_quotes => return Ok(out),
                '"' if self.quotes => in_quotes = !in_quotes,
                '\'' if self.quotes && !in_quotes => {
                    let until = self.rest.find('\'').unwrap_or(self.rest.len());
                    out.push_str(&self.rest[..until]);
                    self.rest = self.rest.get(until + 1..).unwrap_or_default();
                }
                '$' => self.variable(&mut out)?,
                char if char == self.escape => match self.next() {
                    // Inside quotes an escape is itself unless it escapes something.
                    Some(next) if in_quotes && next != '"' && next != '$' && next != self.escape => {
                        out.extend([char, next]);
                    }
                    Some(next) => out.push(next),
                    None => out.push(char),
                },
                char => out.push(char),
            }
        }
        match end {
            Some(_) => Err(ExpandError::Unclosed("${".to_owned())),
            None => Ok(out),
        }
    }

    fn variable(&mut self, out: &mut String) -> Result<(), ExpandError> {
        let braced = self.rest.strip_prefix('{');
        self.rest = braced.unwrap_or(self.rest);
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let end = self.rest.find(|char| !is_name(char)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        let starts_as_name = name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_');
        if braced.is_none() {
            if starts_as_name {
                out.push_str(&self.value(name)?.unwrap_or_default());
                self.rest = rest;
            } else {
                out.push('$');
            }
            return Ok(());
        }
        let name = name.to_owned();
        self.rest = rest;
        if !starts_as_name {
            return Err(ExpandError::Modifier(shown(&format!("{name}{rest}"))));
        }
        let value = self.value(&name)?;
        if let Some(rest) = self.rest.strip_prefix('}') {
            self.rest = rest;
            out.push_str(&value.unwrap_or_default());
            return Ok(());
        }
        let colon = self.rest.starts_with(':');
        let modifier = self.rest.chars().nth(usize::from(colon));
        let Some(modifier @ ('-' | '+' | '?')) = modifier else {
            return Err(match self.rest.is_empty() {
                true => ExpandError::Unclosed(format!("${{{name}")),
                false => ExpandError::Modifier(shown(&format!("{name}{}", self.rest))),
            });
        };
        self.rest = &self.rest[usize::from(colon) + 1..];
        self.depth += 1;
        if self.depth > EXPAND_DEPTH_MAX {
            return Err(ExpandError::TooDeep);
        }
        let alternative = self.run(Some('}'))?;
        self.depth -= 1;
        let value = value.filter(|value| !colon || !value.is_empty());
        match (modifier, value) {
            ('-', None) => out.push_str(&alternative),
            ('+', Some(_)) => out.push_str(&alternative),
            ('+', None) => {}
            ('?', None) => return Err(ExpandError::Unset { name, message: alternative }),
            (_, Some(value)) => out.push_str(&value),
            (_, None) => {}
        }
        Ok(())
    }
}

/// The text up to its brace, cut for an error message.
fn shown(text: &str) -> String {
    text.chars().take_while(|char| *char != '}').take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(word: &str) -> Result<String, ExpandError> {
        expand(word, '\\', &|name| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn variables_and_quotes_are_expanded() {
        for (word, expect) in [
            ("$A/x", "one/x"),
            ("${A}x", "onex"),
            ("\"$A b\"", "one b"),
            ("'$A b'", "$A b"),
            ("\\$A", "$A"),
            ("a\\ b", "a b"),
            ("\"a\\b\"", "a\\b"),
            ("\"say \\\"hi\\\"\"", "say \"hi\""),
            ("${B:-x$A}", "xone"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY-x}", ""),
            ("${A:+yes}${B:+no}", "yes"),
            ("${B:-${A}}", "one"),
            ("$", "$"),
            ("$1", "$1"),
            ("5$B", "5"),
        ] {
            assert_eq!(expanded(word).as_deref(), Ok(expect), "{word}");
        }
    }

    #[test]
    fn invalid_expansions_are_named_in_the_error() {
        assert_eq!(expanded("${A"), Err(ExpandError::Unclosed("${A".to_owned())));
        assert_eq!(expanded("${A:-x"), Err(ExpandError::Unclosed("${".to_owned())));
        assert_eq!(expanded("${A%x}"), Err(ExpandError::Modifier("A%x".to_owned())));
        assert!(expanded("${B:?set B}").unwrap_err().to_string().contains("set B"));
    }

    #[test]
    fn a_heredoc_keeps_its_quotes() {
        let text = "{\"a\": \"$A\", 'b': '${A}', \"c\": \"it's \\$A\"}\n";
        let expanded = expand_text(text, &|_| Some("one".to_owned()));
        assert_eq!(expanded.as_deref(), Ok("{\"a\": \"one\", 'b': 'one', \"c\": \"it's $A\"}\n"));
    }

    #[test]
    fn expansion_is_bounded() {
        let deep = |levels: usize| format!("{}{}", "${B:-".repeat(levels), "}".repeat(levels));
        assert_eq!(expanded(&deep(EXPAND_DEPTH_MAX)).as_deref(), Ok(""));
        assert_eq!(expanded(&deep(EXPAND_DEPTH_MAX + 1)), Err(ExpandError::TooDeep));
        assert_eq!(expanded(&deep(200_000)), Err(ExpandError::TooDeep));
        let long = "x".repeat(EXPANDED_BYTES_MAX);
        let with = |word| expand(word, '\\', &|_| Some(long.clone())).map(|text| text.len());
        assert_eq!(with("a$A"), Ok(EXPANDED_BYTES_MAX + 1), "text of the file itself is not counted");
        assert_eq!(with("$A$A"), Err(ExpandError::TooLong(EXPANDED_BYTES_MAX)));
        assert_eq!(with("${A:+a}${A:+b}"), Err(ExpandError::TooLong(EXPANDED_BYTES_MAX)));
    }

    #[test]
    fn split_words_keep_their_quotes() {
        assert_eq!(split("a \"b c\" d\\ e  'f g'", '\\'), ["a", "\"b c\"", "d\\ e", "'f g'"]);
        assert_eq!(split("", '\\'), Vec::<String>::new());
    }
}
