//! Phrases that the usual terms replace.

use std::path::Path;

use super::allowance;

/// A phrase in lower case, the term to use instead, and the number of lines that still have it. A
/// number only goes down; a phrase with none left stays, so that it does not come back.
const PHRASES: [(&str, &str, usize); 21] = [
    ("lead ports of this machine", "forward local ports", 0),
    ("make, use and delete", "manage", 1),
    ("show and set what", "show or change", 0),
    ("what the workspace may have", "workspace quotas", 12),
    ("what the workspace gives", "defaults for new sandboxes", 0),
    ("something at certain times", "schedules", 0),
    ("what a shell needs to complete", "shell completions", 0),
    ("ended before its end", "cancelled", 2),
    ("goes on after its end", "unexpected data after", 1),
    ("is not what this call takes", "invalid value for", 6),
    ("something else is being done to", "another operation is in progress", 1),
    ("is being taken already", "is already being processed", 2),
    ("there is no such thing", "not found", 3),
    ("no path that a request could have", "is not a valid request path", 1),
    ("takes its turn first", "a keyed mutex", 0),
    ("one that stands still", "a stopped machine", 1),
    ("on this word", "just before resume", 1),
    ("whether they became machines", "whether they came up", 0),
    ("nothing that is said is left out", "applies the given settings", 0),
    ("when nobody looks", "when idle", 1),
    ("which nobody waits for", "in the background", 0),
];
/// The file with the table above.
const OWN_FILE: &str = "xtask/src/tidy/phrases.rs";

/// Lines with each phrase so far.
#[derive(Debug, Default)]
pub struct Phrases {
    found: [Vec<String>; PHRASES.len()],
}

impl Phrases {
    /// Looks for every phrase in a file.
    pub fn read(&mut self, path: &Path, text: &str) {
        if path == Path::new(OWN_FILE) {
            return;
        }
        for (line, number) in text.lines().zip(1..) {
            let lower = line.to_lowercase();
            for ((phrase, ..), found) in PHRASES.iter().zip(&mut self.found) {
                if lower.contains(phrase) {
                    found.push(format!("{}:{number}", path.display()));
                }
            }
        }
    }

    /// Every phrase that is on more lines than it was, or on fewer.
    pub fn problems(&self) -> Vec<String> {
        let judge = |((phrase, term, left), found): (&(&str, &str, usize), &Vec<String>)| {
            allowance::judge(&format!("instead of \"{phrase}\" write \"{term}\""), *left, found, OWN_FILE)
        };
        PHRASES.iter().zip(&self.found).filter_map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_a_phrase_is_found() {
        let (phrase, ..) = PHRASES[0];
        let mut phrases = Phrases::default();
        phrases.read(Path::new("a.md"), &format!("x\nIt is {}.\n", phrase.to_uppercase()));
        phrases.read(Path::new(OWN_FILE), phrase);
        assert_eq!(phrases.found[0], ["a.md:2"]);
        assert!(phrases.found[1..].iter().all(Vec::is_empty));
    }
}
