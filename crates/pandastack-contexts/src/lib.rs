//! Code contexts: interpreters in a sandbox that keep their state between runs.
//!
//! ```text
//!   POST .../repl/sessions/{context}/run --> one line of JSON on the kernel's standard input
//!   answer or events                     <-- lines of JSON on its standard output
//! ```
//!
//! A context is a process of the sandbox: an interpreter of a language, driven by a small program of
//! ours ([`kernel`]), that keeps one namespace. So contexts live as long as the sandbox, survive sleep,
//! snapshot and fork with it, and need no state here. They are found by the tag of their process,
//! `code-context <id> <language> <second of its begin> <directory>`.
//!
//! Must hold: runs of a context are sequential (the kernel ensures it); a run whose client
//! disconnects, or that times out, is interrupted, and its context stays.
//!
//! To add a language: a row of `pandastack_types::Language`, its kernel in `kernels/`, its command in
//! [`kernel`].
//!
//! Out of scope: running processes (the agent), and E2B's version of this API (`pandastack-e2b`).

#![forbid(unsafe_code)]

mod context;
mod execution;
mod kernel;
#[cfg(test)]
mod kernel_tests;
pub mod routes;

use pandastack_types::SandboxId;

/// Prevents two calls from starting the same context twice or mixing their requests.
type ContextLocks = pandastack_sandboxes::keyed_mutex::KeyedMutex<(SandboxId, String)>;
