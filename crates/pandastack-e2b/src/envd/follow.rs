//! Converts a process's native events to E2B's stream: `start`, `data`..., `end`, and the end frame.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures::Stream;
use http::Method;
use pandastack_types::api::{Signal, SignalProcess};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connect::{self, Pace, sleep_until};
use crate::error::{RpcCode, RpcError, RpcResult};
use crate::native_paths as paths;
use crate::session::Session;
use crate::sse::{Event, Events};

/// A process as the client knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FollowedProcess {
    /// The platform's number.
    pub(super) id: u64,
    /// The kernel's number, which clients use.
    pub(super) pid: i32,
    /// Whether the process has a terminal.
    pub(super) is_terminal: bool,
    /// The time limit is the process's, not only the stream's.
    pub(super) is_owned: bool,
}

struct Follow {
    session: Session,
    process: FollowedProcess,
    events: Events,
    keepalive: Duration,
    deadline: Option<Instant>,
    step: Step,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Start,
    Events,
    End(RpcResult<()>),
    Over,
}

/// Responds with the events of a process.
pub(super) fn answer(session: Session, process: FollowedProcess, native: Response, pace: Pace) -> Response {
    connect::stream(frames(session, process, native, pace))
}

fn frames(
    session: Session,
    process: FollowedProcess,
    native: Response,
    pace: Pace,
) -> impl Stream<Item = Bytes> {
    let follow = Follow {
        session,
        process,
        events: Events::new(native.into_body()),
        keepalive: pace.keepalive,
        deadline: pace.timeout.map(|timeout| Instant::now() + timeout),
        step: Step::Start,
    };
    futures::stream::unfold(follow, |mut follow| async move { Some((follow.next().await?, follow)) })
}

fn event(value: Value) -> Bytes {
    connect::message(&json!({ "event": value }))
}

impl Follow {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match &self.step {
                Step::Start => {
                    self.step = Step::Events;
                    return Some(event(json!({ "start": { "pid": self.process.pid } })));
                }
                Step::Events => {
                    if let Some(frame) = self.next_event().await {
                        return Some(frame);
                    }
                }
                Step::End(result) => {
                    let frame = connect::end(result.clone());
                    self.step = Step::Over;
                    return Some(frame);
                }
                Step::Over => return None,
            }
        }
    }

    /// The next frame; none if an event has no frame or the step changed.
    async fn next_event(&mut self) -> Option<Bytes> {
        let read = tokio::select! {
            read = self.events.next() => read,
            () = tokio::time::sleep(self.keepalive) => return Some(event(json!({ "keepalive": {} }))),
            () = sleep_until(self.deadline) => {
                self.step = Step::End(Err(self.out_of_time().await));
                return None;
            }
        };
        match read {
            Ok(Some(event)) => self.translate(event),
            Ok(None) => self.fail("the stream ended before the process exited; reconnect to the process"),
            Err(broken) => self.fail(&pandastack_types::chain(&broken)),
        }
    }

    fn fail(&mut self, why: &str) -> Option<Bytes> {
        self.step = Step::End(Err(RpcError::new(RpcCode::Unavailable, why)));
        None
    }

    async fn out_of_time(&mut self) -> RpcError {
        if self.process.is_owned {
            let path = paths::signal_process(&self.session.sandbox, self.process.id);
            let kill = SignalProcess { signal: Signal::KILL };
            if let Err(error) = self.session.native.call(Method::POST, &path, Some(&kill)).await {
                // It has ended, or its own limit will end it.
                tracing::debug!(%error, "cannot kill a process after its timeout");
            }
        }
        RpcError::new(RpcCode::DeadlineExceeded, "the request's deadline has passed")
    }

    fn translate(&mut self, native: Event) -> Option<Bytes> {
        let Event { name, data } = native;
        match name.as_str() {
            "stdout" | "stderr" => {
                let stream = if self.process.is_terminal { "pty" } else { name.as_str() };
                Some(event(json!({ "data": { stream: data["data"] } })))
            }
            "exit" if data["timed_out"] == true => {
                self.step = Step::End(Err(RpcError::new(
                    RpcCode::DeadlineExceeded,
                    "the command exceeded its timeout",
                )));
                None
            }
            "exit" => {
                self.step = Step::End(Ok(()));
                Some(event(json!({ "end": ended(&data) })))
            }
            "error" => {
                let why =
                    data["error"].as_str().unwrap_or("the output of the process is unavailable").to_owned();
                self.fail(&why)
            }
            _ => None,
        }
    }
}

/// The end of a process, in the form of the daemon that clients know.
fn ended(exit: &Value) -> Value {
    let code = exit["exit_code"].as_i64().unwrap_or_default();
    match exit["signal"].as_i64() {
        Some(signal) => {
            let status = format!("signal: {}", signal_word(signal));
            json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
        }
        None if code == 0 => json!({ "exitCode": 0, "exited": true, "status": "exit status 0" }),
        None => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
    }
}

fn signal_word(signal: i64) -> String {
    let word = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        6 => "aborted",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_exits_have_the_e2b_format() {
        assert_eq!(
            ended(&json!({ "exit_code": 0, "signal": null })),
            json!({ "exitCode": 0, "exited": true, "status": "exit status 0" })
        );
        let failed = ended(&json!({ "exit_code": 3, "signal": null }));
        assert_eq!((&failed["exitCode"], &failed["error"]), (&json!(3), &json!("exit status 3")));
        let killed = ended(&json!({ "exit_code": 137, "signal": 9 }));
        assert_eq!(
            (&killed["exitCode"], &killed["exited"], &killed["status"]),
            (&json!(-1), &json!(false), &json!("signal: killed"))
        );
    }
}
