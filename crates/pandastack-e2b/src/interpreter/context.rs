//! Contexts: finding, starting, restarting and ending them.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, RawPathParams};
use http::{Method, StatusCode};
use pandastack_types::api::{Process, ProcessList, ProcessState, Signal, SignalProcess};
use pandastack_types::limits::PROCESS_TAG_BYTES_MAX;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Turns, done, kernel, read_json};
use crate::envd::Session;
use crate::error::{RestError, RestResult};

/// How long a killed context may take to be gone.
const END_WAIT_SECONDS: u32 = 10;
/// What the tag of a context's process begins with.
pub(crate) const CONTEXT_TAG: &str = "e2b-context ";
/// The context of calls that name none.
const DEFAULT_ID: &str = "default";
/// The only language so far.
const PYTHON: &str = "python";
/// Where code runs unless its context says otherwise.
const DEFAULT_CWD: &str = "/home/user";

/// A context and the process that keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) id: String,
    cwd: String,
    pub(super) process: u64,
    /// Bytes that it wrote so far: where to listen from.
    pub(super) heard: (u64, u64),
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

/// Refuses languages that there is no kernel for.
pub(super) fn check_language(language: Option<&str>) -> RestResult<()> {
    match language {
        None | Some("" | PYTHON | "python3" | "py") => Ok(()),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            Err(RestError::bad_request(format!(
                "language `{shown}` is not supported here; there is `{PYTHON}`"
            )))
        }
    }
}

fn tag(id: &str, cwd: &str) -> String {
    format!("{CONTEXT_TAG}{id} {PYTHON} {cwd}")
}

fn parse(process: &Process) -> Option<Context> {
    let mut words = process.tag.as_deref()?.strip_prefix(CONTEXT_TAG)?.splitn(3, ' ');
    let (id, _language, cwd) = (words.next()?, words.next()?, words.next()?);
    Some(Context {
        id: id.to_owned(),
        cwd: cwd.to_owned(),
        process: process.id,
        heard: (process.stdout_end, process.stderr_end),
    })
}

async fn running(session: &Session) -> RestResult<Vec<Context>> {
    let list: ProcessList = session.native.get(&session.path("processes")).await?;
    let alive = list.processes.iter().filter(|process| process.state == ProcessState::Running);
    Ok(alive.filter_map(parse).collect())
}

/// The context of that id; without one the default context, which is made if it is not there.
pub(super) async fn find(session: &Session, id: Option<&str>) -> RestResult<Context> {
    let wanted = id.unwrap_or(DEFAULT_ID);
    // The newest, should a restart have left two.
    let found = running(session).await?.into_iter().rev().find(|context| context.id == wanted);
    match (found, id) {
        (Some(context), _) => Ok(context),
        (None, None | Some(DEFAULT_ID)) => start(session, DEFAULT_ID, DEFAULT_CWD).await,
        (None, Some(id)) => Err(missing(id)),
    }
}

fn missing(id: &str) -> RestError {
    let shown: String = id.chars().take(80).collect();
    RestError::new(StatusCode::NOT_FOUND, format!("context {shown} not found"))
}

async fn start(session: &Session, id: &str, cwd: &str) -> RestResult<Context> {
    let tag = tag(id, cwd);
    if tag.len() > PROCESS_TAG_BYTES_MAX || !cwd.starts_with('/') {
        let longest = PROCESS_TAG_BYTES_MAX - (tag.len() - cwd.len()).min(PROCESS_TAG_BYTES_MAX);
        return Err(RestError::bad_request(format!(
            "`cwd` must be an absolute path of at most {longest} bytes"
        )));
    }
    let path = session.path("processes");
    let process: Process = session.native.json(Method::POST, &path, Some(&kernel::start(tag, cwd))).await?;
    Ok(Context { id: id.to_owned(), cwd: cwd.to_owned(), process: process.id, heard: (0, 0) })
}

/// Ends a context and waits until it is gone: whoever lists contexts next does not see it.
async fn end(session: &Session, context: &Context) -> RestResult<()> {
    let path = session.path(&format!("processes/{}", context.process));
    let kill = SignalProcess { signal: Signal::KILL };
    let killed = session.native.tell(Method::POST, &format!("{path}/signal"), Some(&kill)).await;
    let waited = match killed {
        Ok(()) => session.native.get(&format!("{path}/wait?timeout_seconds={END_WAIT_SECONDS}")).await,
        Err(error) => Err(error),
    };
    match waited.map(|_: Value| ()) {
        // It ended by itself.
        Err(error) if error.status != StatusCode::NOT_FOUND && error.status != StatusCode::CONFLICT => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}

fn show(context: &Context) -> Value {
    json!({ "id": context.id, "language": PYTHON, "cwd": context.cwd })
}

/// Makes a context.
pub(super) async fn create(session: Session, body: Body) -> RestResult<Json<Value>> {
    let wanted: NewContext = read_json(body).await?;
    check_language(wanted.language.as_deref())?;
    let id = uuid::Uuid::new_v4().to_string();
    let cwd = wanted.cwd.as_deref().filter(|cwd| !cwd.is_empty()).unwrap_or(DEFAULT_CWD);
    Ok(Json(show(&start(&session, &id, cwd).await?)))
}

/// Contexts that there are.
pub(super) async fn list(session: Session) -> RestResult<Json<Vec<Value>>> {
    Ok(Json(running(&session).await?.iter().map(show).collect()))
}

/// Ends a context and begins it anew, without what it knew.
pub(super) async fn restart(
    session: Session,
    Extension(turns): Extension<Arc<Turns>>,
    params: RawPathParams,
) -> RestResult<Json<Value>> {
    let id = named(&params);
    let turn = turns.of(format!("{} {id}", session.sandbox));
    let _mine = turn.lock().await;
    let context = find(&session, Some(&id)).await?;
    end(&session, &context).await?;
    start(&session, &context.id, &context.cwd).await?;
    Ok(done())
}

/// Ends a context.
pub(super) async fn remove(
    session: Session,
    Extension(turns): Extension<Arc<Turns>>,
    params: RawPathParams,
) -> RestResult<Json<Value>> {
    let id = named(&params);
    let turn = turns.of(format!("{} {id}", session.sandbox));
    let _mine = turn.lock().await;
    let found = running(&session).await?.into_iter().find(|context| context.id == id);
    end(&session, &found.ok_or_else(|| missing(&id))?).await?;
    Ok(done())
}

fn named(params: &RawPathParams) -> String {
    params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_found_by_their_tags() {
        let process: Process = serde_json::from_value(json!({
            "id": 7, "pid": 1, "tag": tag("abc", "/srv/with space"), "command": "x", "state": "running", "duration_ms": 0,
            "stdout_start": 0, "stdout_end": 5, "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0,
        }))
        .unwrap();
        let context = parse(&process).unwrap();
        assert_eq!(
            (context.id.as_str(), context.cwd.as_str(), context.process),
            ("abc", "/srv/with space", 7)
        );
        assert_eq!(parse(&Process { tag: Some("mine".into()), ..process }), None);
    }

    #[test]
    fn other_languages_are_refused() {
        assert!(check_language(None).is_ok());
        assert!(check_language(Some("python")).is_ok());
        assert!(check_language(Some("cobol")).is_err());
    }
}
