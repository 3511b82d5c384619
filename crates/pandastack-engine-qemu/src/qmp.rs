//! Client of the emulator's control protocol (QMP): JSON lines over a unix socket, descriptors beside them.
//!
//! Owns the connection: a task reads for as long as the client lives, so that events never pile up in the emulator.
//! Calls take turns; a reply that comes after its caller gave up is recognised by its id and dropped.
//!
//! Left to others: what the commands mean.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pandastack_engine::{EngineError, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, broadcast, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::limits::{COMMAND_MAX, QMP_EVENTS_MAX, QMP_LINE_BYTES_MAX};
use crate::qmp_lines::Lines;

/// Replies that may wait: one, since calls take turns, and a late one of a caller that gave up.
const REPLIES_MAX: usize = 2;
/// Read at a time.
const READ_BYTES: usize = 16 * 1024;

/// An event of the emulator.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Such as `STOP` or `MIGRATION`.
    pub(crate) name: String,
    /// Details.
    pub(crate) data: Value,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: Arc<UnixStream>,
    calls: Mutex<Calls>,
    /// Only a seed for subscribers: the sender is the reader's, so that the end of the connection reaches them.
    events: broadcast::Receiver<Event>,
    _reader: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Calls {
    replies: mpsc::Receiver<Value>,
    next_id: u64,
}

impl Qmp {
    /// Waits for the greeting on a new connection and negotiates capabilities.
    pub(crate) async fn connect(stream: UnixStream, limit: Duration) -> Result<Self> {
        let qmp = Self::resume(stream);
        let deadline = Instant::now() + limit;
        let greeting = {
            let mut calls = qmp.calls.lock().await;
            receive(&mut calls, "waiting for the emulator's greeting", deadline, limit).await?
        };
        if greeting.get("QMP").is_none() {
            return Err(bad_response("waiting for the emulator's greeting", &greeting));
        }
        qmp.call("qmp_capabilities", json!({}), limit).await?;
        Ok(qmp)
    }

    /// Continues an already negotiated connection, of a forked emulator.
    pub(crate) fn resume(stream: UnixStream) -> Self {
        let stream = Arc::new(stream);
        let (replies_in, replies) = mpsc::channel(REPLIES_MAX);
        let (events_in, events) = broadcast::channel(QMP_EVENTS_MAX);
        let reader = Reader { stream: stream.clone(), replies: replies_in, events: events_in };
        let reader = AbortOnDropHandle::new(tokio::spawn(reader.run()));
        Self { stream, calls: Mutex::new(Calls { replies, next_id: 1 }), events, _reader: reader }
    }

    /// Events from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.resubscribe()
    }

    /// One command with the usual limit.
    pub(crate) async fn command(&self, name: &'static str, arguments: Value) -> Result<Value> {
        self.call(name, arguments, COMMAND_MAX).await
    }

    /// One command that only newer emulators support and need.
    pub(crate) async fn command_if_known(&self, name: &'static str, arguments: Value) -> Result<()> {
        let reply = self.exchange(name, arguments, &[], COMMAND_MAX).await?;
        match reply.pointer("/error/class").and_then(Value::as_str) {
            Some("CommandNotFound") => Ok(()),
            _ => result(name, reply).map(drop),
        }
    }

    /// One command.
    pub(crate) async fn call(&self, name: &'static str, arguments: Value, limit: Duration) -> Result<Value> {
        result(name, self.exchange(name, arguments, &[], limit).await?)
    }

    /// Passes a descriptor to the emulator under a name.
    pub(crate) async fn give_descriptor(&self, name: &str, fd: BorrowedFd<'_>) -> Result<()> {
        let reply = self.exchange("getfd", json!({ "fdname": name }), &[fd], COMMAND_MAX).await?;
        result("getfd", reply).map(drop)
    }

    /// Sends a command and waits for its reply, which may be an error.
    async fn exchange(
        &self,
        name: &'static str,
        arguments: Value,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Value> {
        let deadline = Instant::now() + limit;
        let mut calls = timeout_at(deadline, self.calls.lock()).await.map_err(|_| too_late(name, limit))?;
        let id = calls.next_id;
        calls.next_id += 1;
        // The emulator reads a command byte by byte, with several system calls for each: empty
        // arguments are omitted.
        let mut command = json!({ "execute": name, "id": id });
        if arguments.as_object().is_none_or(|arguments| !arguments.is_empty()) {
            command["arguments"] = arguments;
        }
        let line = command.to_string() + "\n";
        timeout_at(deadline, self.send(line.as_bytes(), fds))
            .await
            .map_err(|_| too_late(name, limit))?
            .map_err(|source| EngineError::Exited(format!("{name} could not be sent: {source}")))?;
        loop {
            let reply = receive(&mut calls, name, deadline, limit).await?;
            if reply.get("id").and_then(Value::as_u64) == Some(id) {
                return Ok(reply);
            }
        }
    }

    /// Writes a line; the descriptors go with its first byte.
    async fn send(&self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self
                .stream
                .async_io(Interest::WRITABLE, || {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    if !fds.is_empty() {
                        ancillary.push(SendAncillaryMessage::ScmRights(fds));
                    }
                    let parts = [IoSlice::new(bytes)];
                    Ok(rustix::net::sendmsg(&*self.stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?)
                })
                .await?;
            (bytes, fds) = (&bytes[sent..], &[]);
        }
        Ok(())
    }
}

/// The return value of a reply, or the error that it is.
pub(crate) fn result(step: &'static str, mut reply: Value) -> Result<Value> {
    if let Some(value) = reply.get_mut("return") {
        return Ok(value.take());
    }
    let detail = reply.pointer("/error/desc").and_then(Value::as_str);
    let detail = detail.map_or_else(|| reply.to_string(), str::to_owned);
    Err(EngineError::Vmm { step, detail })
}

async fn receive(calls: &mut Calls, step: &'static str, deadline: Instant, limit: Duration) -> Result<Value> {
    match timeout_at(deadline, calls.replies.recv()).await {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(EngineError::Exited(format!("the control connection closed during {step}"))),
        Err(_) => Err(too_late(step, limit)),
    }
}

fn too_late(step: &'static str, limit: Duration) -> EngineError {
    EngineError::Deadline { step, limit_ms: limit.as_millis() as u64 }
}

fn bad_response(step: &'static str, reply: &Value) -> EngineError {
    EngineError::Vmm { step, detail: format!("unexpected answer {reply}") }
}

/// Reads lines and sorts them into replies and events until the connection ends.
struct Reader {
    stream: Arc<UnixStream>,
    replies: mpsc::Sender<Value>,
    events: broadcast::Sender<Event>,
}

impl Reader {
    async fn run(self) {
        let mut lines = Lines::default();
        while self.stream.readable().await.is_ok() {
            let buffer = lines.buffer();
            buffer.reserve(READ_BYTES);
            match self.stream.try_read_buf(buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            }
            while let Some(line) = lines.next_line() {
                if self.sort(line).await.is_err() {
                    return;
                }
            }
            if lines.unfinished_bytes() > QMP_LINE_BYTES_MAX {
                tracing::warn!(
                    limit = QMP_LINE_BYTES_MAX,
                    "emulator sent an endless line; closing its control connection"
                );
                return;
            }
        }
    }

    /// Forwards one line; an error means that the receiver is gone.
    async fn sort(&self, line: &[u8]) -> Result<(), ()> {
        let Ok(mut message) = serde_json::from_slice::<Value>(line) else {
            tracing::warn!("emulator sent a line that is not JSON");
            return Ok(());
        };
        if let Some(name) = message.get("event").and_then(Value::as_str).map(str::to_owned) {
            let data = message.get_mut("data").map(Value::take).unwrap_or_default();
            // A missing receiver is fine: events matter only to waiting callers.
            let _ = self.events.send(Event { name, data });
            return Ok(());
        }
        self.replies.send(message).await.map_err(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    const LIMIT: Duration = Duration::from_secs(5);

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[tokio::test]
    async fn qmp_replies_are_matched_and_events_reach_subscribers() {
        let (ours, theirs) = pair();
        let qmp = Qmp::resume(ours);
        let mut events = qmp.subscribe();
        let server = tokio::spawn(async move {
            let mut theirs = BufReader::new(theirs);
            let mut line = String::new();
            theirs.read_line(&mut line).await.unwrap();
            assert!(line.contains(r#""execute":"query-status""#), "{line}");
            let answer = "{\"return\":{\"stale\":1},\"id\":99}\r\n{\"event\":\"STOP\"}\r\n{\"return\":{\"status\":\"paused\"},\"id\":1}\r\n";
            theirs.write_all(answer.as_bytes()).await.unwrap();
            theirs
        });
        let reply = qmp.call("query-status", json!({}), LIMIT).await.unwrap();
        assert_eq!(reply["status"], "paused");
        assert_eq!(events.recv().await.unwrap().name, "STOP");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn qmp_errors_and_exits_are_distinguished() {
        let (ours, mut theirs) = pair();
        let qmp = Qmp::resume(ours);
        theirs
            .write_all(b"{\"error\":{\"class\":\"GenericError\",\"desc\":\"no such thing\"},\"id\":1}\n")
            .await
            .unwrap();
        let error = qmp.call("cont", json!({}), LIMIT).await.unwrap_err();
        assert!(
            matches!(&error, EngineError::Vmm { step: "cont", detail } if detail == "no such thing"),
            "{error:?}"
        );
        drop(theirs);
        let error = qmp.call("cont", json!({}), LIMIT).await.unwrap_err();
        assert!(matches!(error, EngineError::Exited(_)), "{error:?}");
    }

    #[tokio::test]
    async fn only_unknown_command_errors_are_tolerated() {
        let (ours, mut theirs) = pair();
        let qmp = Qmp::resume(ours);
        for (class, id, hidden) in [("CommandNotFound", 1, true), ("GenericError", 2, false)] {
            let reply = format!("{{\"error\":{{\"class\":\"{class}\",\"desc\":\"no\"}},\"id\":{id}}}\n");
            theirs.write_all(reply.as_bytes()).await.unwrap();
            assert_eq!(
                qmp.command_if_known("blockdev-set-active", json!({})).await.is_ok(),
                hidden,
                "{class}"
            );
        }
    }

    #[tokio::test]
    async fn an_unanswered_qmp_call_times_out() {
        let (ours, _theirs) = pair();
        let error = Qmp::resume(ours).call("stop", json!({}), Duration::from_millis(30)).await.unwrap_err();
        assert!(matches!(error, EngineError::Deadline { step: "stop", limit_ms: 30 }), "{error:?}");
    }
}
