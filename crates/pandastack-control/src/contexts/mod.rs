//! Code contexts: interpreters in a sandbox that keep their state between runs.
//!
//! ```text
//!   POST .../repl/sessions/{context}/run --> one line of JSON on the kernel's standard input
//!   answer or events                     <-- lines of JSON on its standard output
//! ```
//!
//! A context is a process of the sandbox: Python with a small program of ours ([`kernel`]) that keeps one namespace. So
//! contexts live as long as the sandbox and go with it through sleep, snapshot and fork, and nothing of them is kept
//! here. They are found by the tag of their process, `code-context <id> <language> <second of its begin> <directory>`.
//!
//! Must hold: runs of a context take turns (the kernel sees to it); a run whose client goes away, or whose time is
//! over, is interrupted, and its context stays.
//!
//! Left to others: running processes (the agent), and E2B's form of the same (`pandastack-e2b`).

mod context;
mod execution;
mod kernel;
mod machine;
pub(crate) mod routes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pandastack_types::SandboxId;

/// One lock per context, while somebody has it: it keeps two calls from starting the same context twice and from mixing
/// their requests.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, sandbox: &SandboxId, context: &str) -> Arc<tokio::sync::Mutex<()>> {
        let key = format!("{sandbox} {context}");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = all.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        all.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        all.insert(key, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_one_turn_and_leaves_nothing() {
        let (turns, sandbox) = (Turns::default(), SandboxId::random());
        let first = turns.of(&sandbox, "a");
        assert!(Arc::ptr_eq(&first, &turns.of(&sandbox, "a")));
        assert!(!Arc::ptr_eq(&first, &turns.of(&sandbox, "b")));
        drop(first);
        turns.of(&sandbox, "c");
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
