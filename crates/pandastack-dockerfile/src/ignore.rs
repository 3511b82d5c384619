//! `.dockerignore`: excludes files from a build context.
//!
//! Patterns are matched one by one and the last match counts; `!` includes a file again. `*` and
//! `?` match within a name, `[a-z]` one of several characters, `**` any number of directories. A
//! pattern also matches everything below a matching directory.
//!
//! These are the rules of Go's `filepath.Match`, which Docker uses. They differ from a shell's, which
//! `pandastack-guest` implements for finding files: there are no `{one,two}`, and a pattern without `/` is
//! matched with the whole path.

/// The patterns of a `.dockerignore` file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore(Vec<Pattern>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    keep: bool,
    parts: Vec<String>,
}

impl Ignore {
    /// Reads the patterns. Lines that make no sense match nothing.
    pub fn parse(text: &str) -> Self {
        let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines();
        let lines = lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(Pattern::parse).filter(|pattern| !pattern.parts.is_empty()).collect())
    }

    /// Returns whether a path, relative to the context, is left out.
    pub fn excludes(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let mut excluded = false;
        for pattern in &self.0 {
            if pattern.keep == excluded && pattern.matches_within(&names) {
                excluded = !pattern.keep;
            }
        }
        excluded
    }

    /// Returns whether a path below an excluded directory may still be included, so that the
    /// directory must be walked.
    pub fn may_keep_below(&self) -> bool {
        self.0.iter().any(|pattern| pattern.keep)
    }
}

impl Pattern {
    fn parse(line: &str) -> Self {
        let (keep, text) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest.trim()));
        let mut parts: Vec<String> = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        Self { keep, parts }
    }

    /// Returns whether the pattern matches the path or a directory above it.
    fn matches_within(&self, names: &[&str]) -> bool {
        let names: Vec<Vec<char>> = names.iter().map(|name| name.chars().collect()).collect();
        // The lengths of the path that the parts so far match. One after another: to try every length for
        // every `**` would take hours for a dozen of them.
        let mut lengths = vec![false; names.len() + 1];
        lengths[0] = true;
        for part in &self.parts {
            if part == "**" {
                let shortest = lengths.iter().position(|matched| *matched).unwrap_or(lengths.len());
                lengths[shortest..].fill(true);
                continue;
            }
            let part: Vec<char> = part.chars().collect();
            for (length, name) in names.iter().enumerate().rev() {
                lengths[length + 1] = lengths[length] && glob(&part, name);
            }
            lengths[0] = false;
        }
        lengths[1..].contains(&true)
    }
}

/// Matches one name. Linear in practice: a star remembers only its last position.
fn glob(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match one(pattern, p, name[n]) {
            Step::Star => {
                star = Some((p, n));
                p += 1;
            }
            Step::Match(next) => {
                p = next;
                n += 1;
            }
            Step::Differs => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|char| *char == '*')
}

enum Step {
    Star,
    Match(usize),
    Differs,
}

/// Compares the pattern at `p` with one character.
fn one(pattern: &[char], p: usize, char: char) -> Step {
    let matched = |is: bool, next: usize| if is { Step::Match(next) } else { Step::Differs };
    match pattern.get(p) {
        None => Step::Differs,
        Some('*') => Step::Star,
        Some('?') => Step::Match(p + 1),
        Some('\\') if p + 1 < pattern.len() => matched(pattern[p + 1] == char, p + 2),
        Some('[') => {
            let Some(length) = pattern[p + 1..].iter().position(|c| *c == ']').filter(|length| *length > 0)
            else {
                return matched(char == '[', p + 1);
            };
            let set = &pattern[p + 1..p + 1 + length];
            let (negated, set) = match set {
                ['^' | '!', rest @ ..] if !rest.is_empty() => (true, rest),
                set => (false, set),
            };
            let mut found = false;
            let mut at = 0;
            while at < set.len() {
                if at + 2 < set.len() && set[at + 1] == '-' {
                    found |= (set[at]..=set[at + 2]).contains(&char);
                    at += 3;
                } else {
                    found |= set[at] == char;
                    at += 1;
                }
            }
            matched(found != negated, p + length + 2)
        }
        Some(expected) => matched(*expected == char, p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignore_patterns_match_like_docker() {
        let ignore = Ignore::parse(
            "# comment\n*.log\n/node_modules\n**/*.pyc\ndocs/**\n!docs/keep.md\n*/temp*\nfile?.[ch]\n\
             !keep.log\n",
        );
        for (path, expect) in [
            ("a.log", true),
            ("dir/a.log", false),
            ("keep.log", false),
            ("node_modules", true),
            ("node_modules/x/y.js", true),
            ("web/node_modules", false),
            ("a.pyc", true),
            ("deep/er/a.pyc", true),
            ("docs/a.md", true),
            ("docs/keep.md", false),
            ("dir/temporary", true),
            ("dir/temporary/file", true),
            ("temp", false),
            ("file1.c", true),
            ("file1.x", false),
        ] {
            assert_eq!(ignore.excludes(path), expect, "{path}");
        }
        assert!(ignore.may_keep_below() && !Ignore::parse("a\n").may_keep_below());
    }

    #[test]
    fn patterns_with_many_double_stars_terminate() {
        let deep = vec!["a"; 40].join("/");
        let stars = vec!["**"; 20].join("/");
        assert!(!Ignore::parse(&format!("{stars}/x")).excludes(&deep));
        assert!(Ignore::parse(&format!("{stars}/a")).excludes(&deep));
        assert!(Ignore::parse("a/**/b/**/c").excludes("a/b/x/c/below"));
    }

    #[test]
    fn an_ignore_file_can_exclude_all_but_one_directory() {
        let ignore = Ignore::parse("*\n!src\n");
        assert!(ignore.excludes("README") && ignore.excludes("other/x") && !ignore.excludes("src/main.rs"));
        assert_eq!(Ignore::parse("..\n/\n\n"), Ignore::default());
    }
}
