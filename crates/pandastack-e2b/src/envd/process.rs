//! `process.Process`: commands and terminals.
//!
//! Clients know a process by the kernel's number; the platform's own number is looked up at each call, because the
//! kernel uses its numbers again.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method, StatusCode, header};
use pandastack_types::agent_api::{PID_HEADER, PROCESS_HEADER};
use pandastack_types::api::{
    CONTEXT_TAG, ExecRequest, Process, ProcessList, ProcessState, Signal, SignalProcess, StartProcess,
    TerminalSize,
};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_MAX;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Messages, Pace};
use super::follow::{self, FollowedProcess};
use super::selector::Selector;
use crate::error::{RpcCode, RpcError, RpcResult};
use crate::native::NativeError;
use crate::native_paths as paths;
use crate::session::Session;
use crate::user::User;

#[derive(Debug, Deserialize)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Pty {
    size: TerminalSize,
}

#[derive(Debug, Deserialize)]
struct ProcessRequest {
    #[serde(default)]
    process: Selector,
    pty: Option<Pty>,
    signal: Option<Value>,
    input: Option<Input>,
}

#[derive(Debug, Deserialize)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// Starts a process and follows it.
pub(super) async fn start(session: Session, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let pace = Pace::of(&parts.headers);
    match begin(&session, &parts.headers, body, pace).await {
        Ok((process, native)) => follow::answer(session, process, native, pace),
        Err(error) => connect::refused(error),
    }
}

async fn begin(
    session: &Session,
    headers: &HeaderMap,
    body: Body,
    pace: Pace,
) -> RpcResult<(FollowedProcess, Response)> {
    let wanted: Start = connect::read_first(body).await?;
    let user = session.user(headers).await?;
    let is_terminal = wanted.pty.is_some();
    let start = translate(wanted, &user, pace);
    let bytes = serde_json::to_vec(&start).map_err(|error| RpcError::invalid(error.to_string()))?;
    let uri = paths::start_process(&session.sandbox);
    let request = http::Request::builder().method(Method::POST).uri(uri);
    let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(bytes));
    let request = request.map_err(|error| RpcError::invalid(error.to_string()))?;
    let native = session.native.send(request).await.map_err(not_started)?;
    let number = |name: &str| native.headers().get(name)?.to_str().ok()?.parse::<i64>().ok();
    let (Some(id), Some(pid)) = (number(PROCESS_HEADER), number(PID_HEADER)) else {
        return Err(RpcError::new(
            RpcCode::Internal,
            "the host did not return a process id; upgrade the host to this server's version",
        ));
    };
    let id = u64::try_from(id).unwrap_or_default();
    Ok((
        FollowedProcess { id, pid: i32::try_from(pid).unwrap_or_default(), is_terminal, is_owned: true },
        native,
    ))
}

/// A missing program or directory is the caller's mistake, not a missing process.
fn not_started(error: NativeError) -> RpcError {
    match error.is_missing_file() {
        true => RpcError::invalid(error.message),
        false => error.into(),
    }
}

fn translate(wanted: Start, user: &User, pace: Pace) -> StartProcess {
    let Config { cmd, args, envs, cwd } = wanted.process;
    let argv = std::iter::once(cmd).chain(args).collect();
    // The stream enforces the exact timeout; this one applies when no client follows any more.
    let seconds = pace.timeout.map(|timeout| timeout.as_millis().div_ceil(1000) + 1);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    StartProcess {
        exec: ExecRequest {
            argv: Some(argv),
            cwd: cwd.map(|cwd| user.absolute(&cwd)),
            env: Some(envs),
            user: Some(user.name.clone()),
            timeout_seconds: seconds.filter(|seconds| *seconds <= EXEC_TIMEOUT_SECONDS_MAX),
            ..ExecRequest::default()
        },
        stdin_open: wanted.stdin.unwrap_or(true),
        pty: wanted.pty.map(|pty| pty.size),
        tag: wanted.tag,
    }
}

/// Follows an existing process, starting with its retained output.
pub(super) async fn connect(session: Session, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match attach(&session, body).await {
        Ok((process, native)) => follow::answer(session, process, native, Pace::of(&parts.headers)),
        Err(error) => connect::refused(error),
    }
}

async fn attach(session: &Session, body: Body) -> RpcResult<(FollowedProcess, Response)> {
    let wanted: ProcessRequest = connect::read_first(body).await?;
    let process = wanted.process.find(session).await?;
    let (out, err) = (process.stdout_end, process.stderr_end);
    // As in E2B's daemon: a late follower gets only new output, and only the exit of an ended
    // process.
    let path = paths::process_output(&session.sandbox, process.id, out, err);
    let native = session.native.open(&path).await?;
    let is_terminal = process.pty.is_some();
    Ok((FollowedProcess { id: process.id, pid: process.pid, is_terminal, is_owned: false }, native))
}

/// Processes that run. The platform keeps the first 200 characters of a command.
pub(super) async fn list(session: Session, body: Body) -> RpcResult<Json<Value>> {
    let _nothing: Value = connect::read_unary(body).await?;
    let list: ProcessList = session.native.get(&paths::processes(&session.sandbox)).await?;
    let own = |process: &Process| process.tag.as_deref().is_some_and(|tag| tag.starts_with(CONTEXT_TAG));
    let running =
        list.processes.iter().filter(|process| process.state == ProcessState::Running && !own(process));
    let shown: Vec<_> = running
        .map(|process| {
            let (cmd, args) = split_command(&process.command);
            json!({ "pid": process.pid, "tag": process.tag, "config": { "cmd": cmd, "args": args, "envs": {} } })
        })
        .collect();
    Ok(Json(json!({ "processes": shown })))
}

/// Undoes the joining of the two commands that clients start themselves; others are the program and its words.
fn split_command(command: &str) -> (String, Vec<String>) {
    for flags in [&["-l", "-c"][..], &["-i", "-l"]] {
        let start = format!("/bin/bash {}", flags.join(" "));
        if let Some(rest) = command.strip_prefix(&start) {
            let rest = rest.strip_prefix(' ').map(str::to_owned);
            return (
                "/bin/bash".to_owned(),
                flags.iter().map(|flag| (*flag).to_owned()).chain(rest).collect(),
            );
        }
    }
    let mut words = command.split(' ').map(str::to_owned);
    (words.next().unwrap_or_default(), words.collect())
}

/// Writes to a process's input.
pub(super) async fn send_input(session: Session, body: Body) -> RpcResult<Json<Value>> {
    let wanted: ProcessRequest = connect::read_unary(body).await?;
    let process = wanted.process.find_running(&session).await?;
    write(&session, &process, wanted.input.as_ref()).await?;
    Ok(Json(json!({})))
}

async fn write(session: &Session, process: &Process, input: Option<&Input>) -> RpcResult<()> {
    let encoded = input.and_then(|input| input.stdin.as_ref().or(input.pty.as_ref()));
    let encoded = encoded.ok_or_else(|| RpcError::invalid("`input` has neither `stdin` nor `pty`"))?;
    let bytes = STANDARD.decode(encoded).map_err(|_| RpcError::invalid("`input` is not valid base64"))?;
    stdin(session, paths::process_input(&session.sandbox, process.id), bytes).await
}

async fn stdin(session: &Session, uri: String, bytes: Vec<u8>) -> RpcResult<()> {
    let request = http::Request::builder().method(Method::POST).uri(uri).body(Body::from(bytes));
    let request = request.map_err(|error| RpcError::invalid(error.to_string()))?;
    session.native.send(request).await.map(drop).map_err(|error| match error.status {
        // The process ended between the lookup and the write, or has no input.
        StatusCode::CONFLICT | StatusCode::BAD_REQUEST => {
            RpcError::new(RpcCode::FailedPrecondition, error.message)
        }
        _ => error.into(),
    })
}

#[derive(Debug, Default, Deserialize)]
struct StreamedInput {
    start: Option<StreamStart>,
    data: Option<StreamData>,
}

#[derive(Debug, Deserialize)]
struct StreamStart {
    process: Selector,
}

#[derive(Debug, Deserialize)]
struct StreamData {
    input: Input,
}

/// Writes to a process's input until the client stops sending.
pub(super) async fn stream_input(session: Session, body: Body) -> Response {
    match take_stream(&session, body).await {
        Ok(()) => {
            connect::stream(futures::stream::iter([connect::message(&json!({})), connect::end(Ok(()))]))
        }
        Err(error) => connect::refused(error),
    }
}

async fn take_stream(session: &Session, body: Body) -> RpcResult<()> {
    let mut messages = Messages::new(body);
    let mut process = None;
    while let Some(message) = messages.next_as::<StreamedInput>().await? {
        if let Some(start) = message.start {
            process = Some(start.process.find_running(session).await?);
        }
        if let Some(data) = message.data {
            let process =
                process.as_ref().ok_or_else(|| RpcError::invalid("the first message must be `start`"))?;
            write(session, process, Some(&data.input)).await?;
        }
    }
    Ok(())
}

/// Ends a process's input.
pub(super) async fn close_stdin(session: Session, body: Body) -> RpcResult<Json<Value>> {
    let wanted: ProcessRequest = connect::read_unary(body).await?;
    let process = wanted.process.find_running(&session).await?;
    stdin(&session, paths::close_input(&session.sandbox, process.id), Vec::new()).await?;
    Ok(Json(json!({})))
}

/// Changes the size of a terminal.
pub(super) async fn update(session: Session, body: Body) -> RpcResult<Json<Value>> {
    let wanted: ProcessRequest = connect::read_unary(body).await?;
    let process = wanted.process.find_running(&session).await?;
    if let Some(pty) = wanted.pty {
        let path = paths::resize_terminal(&session.sandbox, process.id);
        session.native.call(Method::POST, &path, Some(&pty.size)).await?;
    }
    Ok(Json(json!({})))
}

/// Sends a signal.
pub(super) async fn send_signal(session: Session, body: Body) -> RpcResult<Json<Value>> {
    let wanted: ProcessRequest = connect::read_unary(body).await?;
    let signal = match wanted.signal.as_ref() {
        Some(Value::String(name)) if name == "SIGNAL_SIGKILL" => Signal::KILL,
        Some(Value::String(name)) if name == "SIGNAL_SIGTERM" => Signal::TERM,
        Some(Value::Number(number)) if number.as_i64() == Some(9) => Signal::KILL,
        Some(Value::Number(number)) if number.as_i64() == Some(15) => Signal::TERM,
        _ => return Err(RpcError::invalid("`signal` must be SIGNAL_SIGKILL or SIGNAL_SIGTERM")),
    };
    let process = wanted.process.find_running(&session).await?;
    let path = paths::signal_process(&session.sandbox, process.id);
    session.native.call(Method::POST, &path, Some(&SignalProcess { signal })).await?;
    Ok(Json(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_into_its_original_arguments() {
        let (cmd, args) = split_command("/bin/bash -l -c sleep 5; echo x");
        assert_eq!(
            (cmd.as_str(), args.as_slice()),
            ("/bin/bash", &["-l", "-c", "sleep 5; echo x"].map(str::to_owned)[..])
        );
        assert_eq!(split_command("/bin/bash -i -l").1, ["-i", "-l"]);
        assert_eq!(split_command("ls -la").1, ["-la"]);
    }

    #[test]
    fn an_e2b_process_start_translates_to_a_native_start() {
        let wanted: Start = serde_json::from_value(json!({
            "process": { "cmd": "/bin/bash", "args": ["-l", "-c", "true"], "envs": { "A": "1" }, "cwd": "work" },
            "stdin": false,
        }))
        .unwrap();
        let user = User { name: "user".into(), home: "/home/user".into() };
        let pace = Pace {
            timeout: Some(std::time::Duration::from_millis(1500)),
            keepalive: std::time::Duration::ZERO,
        };
        let start = translate(wanted, &user, pace);
        assert_eq!(start.exec.argv.unwrap(), ["/bin/bash", "-l", "-c", "true"]);
        assert_eq!(
            (start.exec.cwd.as_deref(), start.exec.timeout_seconds),
            (Some("/home/user/work"), Some(3))
        );
        assert!(!start.stdin_open);
    }
}
