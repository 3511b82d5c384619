//! The AWS Lambda runtime API, for the handler's process.
//!
//! ```text
//!   GET  /2018-06-01/runtime/invocation/next            waits for a call; its event is the body
//!   POST /2018-06-01/runtime/invocation/{id}/response   the answer, whole or in parts; 202
//!   POST /2018-06-01/runtime/invocation/{id}/error      the handler failed; 202
//!   POST /2018-06-01/runtime/init/error                 it could not start; 202
//! ```
//!
//! Requests may be pipelined: a bootstrap sends its answer and asks for the next call at once.

use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::time::{Instant, SystemTime};

use pandastack_function_proto::{ANSWER_BYTES_MAX, Head, Outcome, PART_BYTES_MAX};
use serde_json::json;

use super::calls::{Calls, HandlerCall, HandlerResponse, Part, ResponseSender};
use super::handler::Handler;
use super::http::{Body, RequestHead, answer, read_head};
use super::output::Output;

const START: &str = "/2018-06-01/runtime/";
/// Start of a request for the next call.
const ASKS_NEXT: &[u8] = b"GET /2018-06-01/runtime/invocation/next ";
/// Header in which our bootstraps report their peak memory. For others the kernel is queried, which
/// takes longer.
const MEMORY_PEAK: &str = "pandastack-memory-peak-kb";

struct Api<'a> {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    calls: &'a Calls,
    output: &'a Output,
    handler: &'a Handler,
    /// A reply that is sent together with the next call.
    held: Vec<u8>,
}

/// Serves a connection to its end.
pub(super) fn serve(stream: TcpStream, calls: &Calls, output: &Output, handler: &Handler) {
    let _ = stream.set_nodelay(true);
    let Ok(read_side) = stream.try_clone() else { return };
    let mut api = Api { stream, reader: BufReader::new(read_side), calls, output, handler, held: Vec::new() };
    loop {
        match api.serve_one() {
            Ok(true) => {}
            // A killed handler breaks the connection; its end is reported elsewhere.
            Ok(false) | Err(_) => return,
        }
    }
}

impl Api<'_> {
    /// `false` at the connection's end.
    fn serve_one(&mut self) -> io::Result<bool> {
        let Some(head) = read_head(&mut self.reader)? else { return Ok(false) };
        let mut body = head.body()?;
        let path = head.path.strip_prefix(START).unwrap_or_default();
        match (head.method.as_str(), path.split('/').collect::<Vec<_>>().as_slice()) {
            ("GET", ["invocation", "next"]) => return Ok(self.next()? && !head.closes()),
            ("POST", ["invocation", id, "response"]) => self.respond(&head, &mut body, id)?,
            ("POST", ["invocation", id, "error"]) => self.fail(&head, &mut body, id)?,
            ("POST", ["init", "error"]) => self.fail_start(&mut body)?,
            _ => {
                self.read_all(&mut body)?;
                self.refuse("404 Not Found", "unknown path of the runtime API")?;
            }
        }
        Ok(!head.closes())
    }

    fn refuse(&mut self, status: &str, message: &str) -> io::Result<()> {
        let body = json!({"errorMessage": message, "errorType": "InvalidRequest"}).to_string();
        self.stream.write_all(&answer(status, "", body.as_bytes()))
    }

    /// Records a response. A handler that has already requested the next call gets the
    /// acknowledgement with that call: otherwise it would only wake to wait again, on the processor
    /// that sends the response.
    fn accept(&mut self) -> io::Result<()> {
        let accepted = answer("202 Accepted", "", b"{\"status\":\"OK\"}");
        if self.reader.buffer().starts_with(ASKS_NEXT) {
            self.held = accepted;
            return Ok(());
        }
        self.stream.write_all(&accepted)
    }

    fn next(&mut self) -> io::Result<bool> {
        let Some(taken) = self.calls.next() else { return Ok(false) };
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend(answer("200 OK", &heads_of(&taken), &taken.event));
        self.stream.write_all(&bytes)?;
        Ok(true)
    }

    fn respond(&mut self, head: &RequestHead, body: &mut Body, id: &str) -> io::Result<()> {
        let Some(to) = self.calls.answer(id) else {
            self.read_all(body)?;
            return self.refuse("400 Bad Request", "no call with this id is in progress");
        };
        let mode = head.header("lambda-runtime-function-response-mode");
        let streaming = mode.is_some_and(|mode| mode.eq_ignore_ascii_case("streaming"));
        let content_type = head.header("content-type").unwrap_or_default().to_owned();
        let answer_head = Head { streaming, content_type };
        let (answer, too_large) = if streaming {
            to.send(Part::Head(answer_head));
            self.pass_on(body, &to)?;
            (None, false)
        } else {
            // Sent together with the end of the call, so that its waiter wakes once.
            let (bytes, is_cut) = self.read_all(body)?;
            let memory_peak_kb = memory_peak_kb(head);
            (Some(HandlerResponse { head: answer_head, body: bytes, memory_peak_kb }), is_cut)
        };
        let broken = body.trailer("lambda-runtime-function-error-type").map(str::to_owned);
        self.output.drain();
        match (too_large, broken) {
            (true, _) => {
                let message =
                    format!("ResponseTooLarge: an answer is at most {ANSWER_BYTES_MAX} bytes; stream it");
                self.calls.finish(id, None, Outcome::Error, Some(message));
                return self.refuse("413 Payload Too Large", "the answer is too large");
            }
            (false, Some(kind)) => {
                let message = format!("the answer broke off: {kind}");
                self.calls.finish(id, answer, Outcome::Error, Some(message));
            }
            (false, None) => self.calls.finish(id, answer, Outcome::Success, None),
        }
        self.accept()
    }

    /// Passes a body on. An abandoned one is still read to its end.
    fn pass_on(&mut self, body: &mut Body, to: &ResponseSender) -> io::Result<()> {
        loop {
            let part = body.read_part(&mut self.reader, PART_BYTES_MAX)?;
            if part.is_empty() {
                return Ok(());
            }
            to.send(Part::Data(part));
        }
    }

    fn fail(&mut self, head: &RequestHead, body: &mut Body, id: &str) -> io::Result<()> {
        let (error, _) = self.read_all(body)?;
        if self.calls.answer(id).is_none() {
            return self.refuse("400 Bad Request", "no call with this id is in progress");
        }
        let memory_peak_kb = memory_peak_kb(head);
        let head = Head { streaming: false, content_type: "application/json".to_owned() };
        self.output.drain();
        let answer = HandlerResponse { head, body: error, memory_peak_kb };
        self.calls.finish(id, Some(answer), Outcome::Error, None);
        self.accept()
    }

    fn fail_start(&mut self, body: &mut Body) -> io::Result<()> {
        let (error, _) = self.read_all(body)?;
        self.output.drain();
        let error: serde_json::Value = serde_json::from_slice(&error).unwrap_or_default();
        let text =
            |name: &str| error.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        let (kind, message) = (text("errorType"), text("errorMessage"));
        self.calls.end(&format!("the handler could not start: {kind}: {message}"), None);
        self.accept()?;
        self.handler.kill();
        Ok(())
    }

    /// A whole body, and whether it was truncated: bytes beyond [`ANSWER_BYTES_MAX`] are read and
    /// dropped.
    fn read_all(&mut self, body: &mut Body) -> io::Result<(Vec<u8>, bool)> {
        let (mut all, mut is_cut) = (Vec::new(), false);
        loop {
            let part = body.read_part(&mut self.reader, PART_BYTES_MAX)?;
            if part.is_empty() {
                return Ok((all, is_cut));
            }
            is_cut |= all.len() + part.len() > ANSWER_BYTES_MAX;
            if !is_cut {
                all.extend_from_slice(&part);
            }
        }
    }
}

fn memory_peak_kb(head: &RequestHead) -> Option<u64> {
    head.header(MEMORY_PEAK)?.parse().ok()
}

/// Header lines of a call.
fn heads_of(taken: &HandlerCall) -> String {
    let HandlerCall { call, deadline, .. } = taken;
    let left = deadline.saturating_duration_since(Instant::now());
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let deadline_ms = (epoch + left).as_millis();
    // A line break in a value would start another header.
    let clean = |text: &str| text.replace(['\r', '\n'], " ");
    let (id, arn, trace) = (clean(&call.id), clean(&call.arn), clean(&call.trace_id));
    let (instance, attempt, http) = (clean(&call.instance), call.attempt, u8::from(call.http));
    format!(
        "Lambda-Runtime-Aws-Request-Id: {id}\r\nLambda-Runtime-Deadline-Ms: {deadline_ms}\r\n\
         Lambda-Runtime-Invoked-Function-Arn: {arn}\r\nLambda-Runtime-Trace-Id: {trace}\r\n\
         Pandastack-Instance: {instance}\r\nPandastack-Attempt: {attempt}\r\nPandastack-Http: {http}\r\n"
    )
}
