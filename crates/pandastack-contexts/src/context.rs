//! Contexts: finding, starting, restarting and ending them.

use jiff::Timestamp;
use pandastack_sandboxes::user_sandbox::UserSandbox;
use pandastack_store::clock::now;
use pandastack_types::api::{CONTEXT_TAG, CodeContext, Process, ProcessState};
use pandastack_types::limits::PROCESS_TAG_BYTES_MAX;
use pandastack_types::{Error, Language, Result};

use crate::kernel;

/// Default working directory of code.
const DEFAULT_CWD: &str = "/home/user";
/// Tag of the process that looks for a language's programs.
const CHECK_TAG: &str = "code-context-check";
/// Longest output of that process: the name of a program.
const CHECK_OUTPUT_BYTES_MAX: usize = 4096;

/// A context and the process that keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    pub(super) cwd: String,
    created_at: Timestamp,
    pub(super) process: u64,
    /// Bytes that it wrote so far: where to listen from.
    pub(super) heard: (u64, u64),
}

impl Context {
    /// Converts it to an API response.
    pub(super) fn shown(self, sandbox: &UserSandbox) -> CodeContext {
        let Context { id, language, cwd, created_at, .. } = self;
        let (sandbox_id, language) = (sandbox.id().clone(), language.name().to_owned());
        CodeContext { id, sandbox_id, language, cwd, created_at }
    }
}

fn tag(id: &str, language: Language, cwd: &str, begin: Timestamp) -> String {
    format!("{CONTEXT_TAG}{id} {} {} {cwd}", language.name(), begin.as_second())
}

fn parse(process: &Process) -> Option<Context> {
    let mut words = process.tag.as_deref()?.strip_prefix(CONTEXT_TAG)?.splitn(4, ' ');
    let (id, language, second, cwd) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Context {
        id: id.to_owned(),
        language: Language::find(Some(language)).ok()?,
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

/// The context of that id. Default contexts are created on first use.
pub(super) async fn find(sandbox: &UserSandbox, id: &str) -> Result<Context> {
    // The newest, should a restart have left two.
    let found = running(sandbox).await?.into_iter().rev().find(|context| context.id == id);
    match (found, Language::of_default_context(id)) {
        (Some(context), _) => Ok(context),
        (None, Some(language)) => start(sandbox, id, language, None).await,
        (None, None) => Err(Error::not_found("context", id)),
    }
}

/// Starts a context, if the sandbox has what its language needs.
pub(super) async fn start(
    sandbox: &UserSandbox,
    id: &str,
    language: Language,
    cwd: Option<&str>,
) -> Result<Context> {
    let cwd = cwd.filter(|cwd| !cwd.is_empty()).unwrap_or(DEFAULT_CWD);
    let begin = now();
    let tag = tag(id, language, cwd, begin);
    if tag.len() > PROCESS_TAG_BYTES_MAX || !cwd.starts_with('/') {
        let longest = (PROCESS_TAG_BYTES_MAX + cwd.len()).saturating_sub(tag.len());
        return Err(Error::bad_request(format!("`cwd` must be an absolute path of at most {longest} bytes")));
    }
    check_programs(sandbox, language).await?;
    let process = sandbox.start(&kernel::start(tag, language, cwd)).await?;
    let (id, cwd) = (id.to_owned(), cwd.to_owned());
    Ok(Context { id, language, cwd, created_at: begin, process: process.id, heard: (0, 0) })
}

/// Refuses a language whose programs the sandbox does not have.
async fn check_programs(sandbox: &UserSandbox, language: Language) -> Result<()> {
    let found = sandbox.exec(&kernel::find_missing(language), CHECK_TAG, CHECK_OUTPUT_BYTES_MAX).await?;
    match found.stdout.trim() {
        "" => Ok(()),
        program => Err(language.missing(program)),
    }
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
        let tag = tag("abc", Language::TypeScript, "/srv/with space", begin);
        let process: Process = serde_json::from_value(serde_json::json!({
            "id": 7, "pid": 1, "tag": tag, "command": "x", "state": "running",
            "duration_ms": 0, "stdout_start": 0, "stdout_end": 5, "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0,
        }))
        .unwrap();
        let context = parse(&process).unwrap();
        assert_eq!((context.id.as_str(), context.cwd.as_str()), ("abc", "/srv/with space"));
        assert_eq!(context.language, Language::TypeScript);
        assert_eq!((context.process, context.heard, context.created_at), (7, (5, 0), begin));
        for foreign in
            ["mine", "code-context x", "code-context x python soon /srv", "code-context x cobol 1 /srv"]
        {
            assert_eq!(parse(&Process { tag: Some(foreign.into()), ..process.clone() }), None, "{foreign}");
        }
    }
}
