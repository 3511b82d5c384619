//! Phrases that the usual terms replace.

use std::path::Path;

use super::allowance;

/// A phrase in lower case, the term to use instead, and the number of lines that still have it. A
/// number only goes down; a phrase with none left stays, so that it does not come back.
const PHRASES: [(&str, &str, usize); 81] = [
    ("lead ports of this machine", "forward local ports", 0),
    ("make, use and delete", "manage", 0),
    ("show and set what", "show or change", 0),
    ("what the workspace may have", "workspace quotas", 0),
    ("what the workspace gives", "defaults for new sandboxes", 0),
    ("something at certain times", "schedules", 0),
    ("what a shell needs to complete", "shell completions", 0),
    ("ended before its end", "cancelled", 0),
    ("goes on after its end", "unexpected data after", 0),
    ("is not what this call takes", "invalid value for", 0),
    ("something else is being done to", "another operation is in progress", 0),
    ("is being taken already", "is already being processed", 0),
    ("there is no such thing", "not found", 0),
    ("no path that a request could have", "is not a valid request path", 0),
    ("takes its turn first", "a keyed mutex", 0),
    ("one that stands still", "a stopped machine", 0),
    ("on this word", "just before resume", 0),
    ("whether they became machines", "whether they came up", 0),
    ("nothing that is said is left out", "applies the given settings", 0),
    ("when nobody looks", "when idle", 0),
    ("which nobody waits for", "in the background", 0),
    ("is not spoken here", "is not supported", 0),
    ("take that back first", "remove the protection first", 0),
    ("did not say which database", "did not name a database", 0),
    ("say what to run", "give a command to run", 0),
    ("has no version that serves", "has no live deployment", 0),
    ("the start command was said", "start_command is set", 0),
    ("is not readable;", "cannot be read", 0),
    ("hung up at the login", "closed the connection during login", 0),
    ("is being tried already", "is already in progress", 0),
    ("which alone may", "only its owner can", 0),
    ("lists those there are", "`pandastack ... list` shows them", 0),
    ("names are for people", "give its full id", 0),
    ("is the machine of database", "runs database", 0),
    ("nobody could type", "has a passphrase", 0),
    ("ports that are none", "invalid ports", 0),
    ("is no number", "is not a number", 0),
    ("is changing all the time", "was changed by other requests", 0),
    ("its log says why", "see its log", 0),
    ("nobody knows why", "the cause is unknown", 0),
    ("when it needs it no more", "when no longer needed", 0),
    ("which leads out of it", "points outside of it", 0),
    ("name for people", "human-readable name", 0),
    ("as its users are told", "shown to its users", 0),
    ("stay awake whoever looks", "never sleep", 0),
    ("takes a setting back", "resets a setting", 0),
    ("an operator's key", "an operator key", 0),
    ("an owner's key", "an owner key", 0),
    ("who may open its ports", "visibility of its ports", 0),
    ("what it gives to sandboxes", "defaults for new sandboxes", 0),
    ("unless said", "Default: ...", 0),
    ("told how deployments go", "reports deployment status", 0),
    ("tell of pushes", "send webhooks for pushes", 0),
    ("looked at again soon", "retrying soon", 0),
    ("does not admit this request", "is not accepted for this request", 0),
    ("which does not keep tenants apart", "which does not isolate tenants", 0),
    ("goes on in another machine", "moves to another machine", 0),
    ("is none; ask", "is not one; ask", 0),
    ("ended by somebody else", "ended by another request", 0),
    ("leads back to this server", "points to this server", 0),
    ("takes no more files", "accepts no more files", 0),
    ("has the operators' keys", "contains the operator keys", 0),
    ("light sleeper", "sandbox asleep in memory", 0),
    ("answers something unexpected", "unexpected response", 0),
    ("what an agent is told when it starts", "settings of an agent", 0),
    ("is said beside it", "each with what happens beyond it", 0),
    ("records as clients see them", "converts records to API responses", 0),
    ("when it is mended", "fix the cause", 0),
    ("one sentence that a user can act on", "human-readable message", 0),
    ("in the place of the id", "instead of the ID", 0),
    ("may lead elsewhere", "may have new targets", 0),
    ("for want of", "for lack of", 0),
    ("says goodbye", "closes the session", 0),
    ("begins anew", "starts over", 0),
    ("made anew", "created again", 0),
    ("sees to it", "ensures", 0),
    ("it calls itself", "its issuer is", 0),
    ("exactly as it writes it", "exactly as in its metadata", 0),
    ("as it stands in", "its value in", 0),
    ("repeat for several", "can be repeated", 0),
    ("nobody is signed in", "not signed in", 0),
];
/// The file with the table above.
const OWN_FILE: &str = "xtask/src/tidy/phrases.rs";

/// Lines with each phrase so far.
#[derive(Debug)]
pub struct Phrases {
    found: [Vec<String>; PHRASES.len()],
}

impl Default for Phrases {
    fn default() -> Self {
        Self { found: std::array::from_fn(|_| Vec::new()) }
    }
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
        let problem = |((phrase, term, left), found): (&(&str, &str, usize), &Vec<String>)| {
            allowance::problem(&format!("instead of \"{phrase}\" write \"{term}\""), *left, found, OWN_FILE)
        };
        PHRASES.iter().zip(&self.found).filter_map(problem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_a_banned_phrase_is_found() {
        let (phrase, ..) = PHRASES[0];
        let mut phrases = Phrases::default();
        phrases.read(Path::new("a.md"), &format!("x\nIt is {}.\n", phrase.to_uppercase()));
        phrases.read(Path::new(OWN_FILE), phrase);
        assert_eq!(phrases.found[0], ["a.md:2"]);
        assert!(phrases.found[1..].iter().all(Vec::is_empty));
    }
}
