//! Contexts: finding, starting, restarting and ending them.

use jiff::Timestamp;
use pandastack_sandboxes::user_sandbox::UserSandbox;
use pandastack_store::clock::now;
use pandastack_types::api::{CONTEXT_DEFAULT, CONTEXT_TAG, CodeContext, Process, ProcessState};
use pandastack_types::limits::PROCESS_TAG_BYTES_MAX;
use pandastack_types::{Error, Result};

use crate::kernel;

/// The only language so far.
const PYTHON: &str = "python";
/// Default working directory of code.
const DEFAULT_CWD: &str = "/home/user";

/// A context and the process that keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) id: String,
    pub(super) cwd: String,
    created_at: Timestamp,
    pub(super) process: u64,
    /// Bytes that it wrote so far: where to listen from.
    pub(super) heard: (u64, u64),
}

impl Context {
    /// Converts it to an API response.
    pub(super) fn shown(self, sandbox: &UserSandbox) -> CodeContext {
        let Context { id, cwd, created_at, .. } = self;
        let (sandbox_id, language) = (sandbox.id().clone(), PYTHON.to_owned());
        CodeContext { id, sandbox_id, language, cwd, created_at }
    }
}

/// Refuses languages without a kernel.
pub(super) fn check_language(language: Option<&str>) -> Result<()> {
    match language {
        None | Some("" | PYTHON | "python3" | "py") => Ok(()),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let what = format!("language `{shown}` is not supported; use `{PYTHON}`");
            Err(Error::bad_request(what))
        }
    }
}

fn tag(id: &str, cwd: &str, begin: Timestamp) -> String {
    format!("{CONTEXT_TAG}{id} {PYTHON} {} {cwd}", begin.as_second())
}

fn parse(process: &Process) -> Option<Context> {
    let mut words = process.tag.as_deref()?.strip_prefix(CONTEXT_TAG)?.splitn(4, ' ');
    let (id, _language, second, cwd) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Context {
        id: id.to_owned(),
        cwd: cwd.to_owned(),
        created_at: Timestamp::from_second(second.parse().ok()?).ok()?,
        process: process.id,
        heard: (process.stdout_end, process.stderr_end),
    })
}

/// Contexts that exist in a sandbox.
pub(super) async fn running(sandbox: &UserSandbox) -> Result<Vec<Context>> {
    let processes = sandbox.processes().await?;
    let alive = processes.iter().filter(|process| process.state == ProcessState::Running);
    Ok(alive.filter_map(parse).collect())
}

/// The context of that id. The default context is created on first use.
pub(super) async fn find(sandbox: &UserSandbox, id: &str) -> Result<Context> {
    // The newest, should a restart have left two.
    let found = running(sandbox).await?.into_iter().rev().find(|context| context.id == id);
    match found {
        Some(context) => Ok(context),
        None if id == CONTEXT_DEFAULT => start(sandbox, id, None).await,
        None => Err(Error::not_found("context", id)),
    }
}

/// Starts a context.
pub(super) async fn start(sandbox: &UserSandbox, id: &str, cwd: Option<&str>) -> Result<Context> {
    let cwd = cwd.filter(|cwd| !cwd.is_empty()).unwrap_or(DEFAULT_CWD);
    let begin = now();
    let tag = tag(id, cwd, begin);
    if tag.len() > PROCESS_TAG_BYTES_MAX || !cwd.starts_with('/') {
        let longest = (PROCESS_TAG_BYTES_MAX + cwd.len()).saturating_sub(tag.len());
        return Err(Error::bad_request(format!("`cwd` must be an absolute path of at most {longest} bytes")));
    }
    let process = sandbox.start(&kernel::start(tag, cwd)).await?;
    let (id, cwd) = (id.to_owned(), cwd.to_owned());
    Ok(Context { id, cwd, created_at: begin, process: process.id, heard: (0, 0) })
}

/// Ends a context, so that later listings omit it.
pub(super) async fn end(sandbox: &UserSandbox, id: &str) -> Result<Context> {
    let found = running(sandbox).await?.into_iter().rev().find(|context| context.id == id);
    let context = found.ok_or_else(|| Error::not_found("context", id))?;
    sandbox.end(context.process).await?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_parsed_from_process_tags() {
        let begin = Timestamp::from_second(1_700_000_000).unwrap();
        let process: Process = serde_json::from_value(serde_json::json!({
            "id": 7, "pid": 1, "tag": tag("abc", "/srv/with space", begin), "command": "x", "state": "running",
            "duration_ms": 0, "stdout_start": 0, "stdout_end": 5, "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0,
        }))
        .unwrap();
        let context = parse(&process).unwrap();
        assert_eq!((context.id.as_str(), context.cwd.as_str()), ("abc", "/srv/with space"));
        assert_eq!((context.process, context.heard, context.created_at), (7, (5, 0), begin));
        for foreign in ["mine", "code-context x", "code-context x python soon /srv"] {
            assert_eq!(parse(&Process { tag: Some(foreign.into()), ..process.clone() }), None, "{foreign}");
        }
    }

    #[test]
    fn unsupported_languages_are_rejected() {
        assert!([None, Some("python"), Some("py")].into_iter().all(|given| check_language(given).is_ok()));
        assert!(check_language(Some("cobol")).is_err());
    }
}
