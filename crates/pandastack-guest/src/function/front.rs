//! Serves the platform's connections to the function runtime: frames in, frames out, one call at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use pandastack_function_proto::{
    Await, End, FRAME_HEAD_BYTES, Kind, Outcome, PART_BYTES_MAX, decode_head, decode_invoke, decode_json,
    encode, encode_json,
};

use super::calls::{CallEnd, Calls, Part};
use super::handler::Handler;

/// Longest wait for the end of a killed handler.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Bytes of frames that wait for others to go out with them.
const OUTBOX_BYTES_MAX: usize = 2 * PART_BYTES_MAX;

/// Outgoing frames, in as few packets as possible: each costs an emulated machine more than its
/// content. Streams and logs are sent as soon as no more is pending, because a reader follows them.
/// A response that is read whole is sent together with its end.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    streams: bool,
    followed: bool,
}

impl Outbox {
    fn add(&mut self, stream: &mut TcpStream, part: Part) -> io::Result<()> {
        match part {
            Part::Head(head) => {
                self.streams = head.streaming;
                self.bytes.extend(encode_json(Kind::Head, &head));
            }
            Part::Data(bytes) => self.add_frames(stream, Kind::Data, &[], &bytes)?,
            Part::Log(from, bytes) => {
                self.followed = true;
                self.add_frames(stream, Kind::Log, &[from.byte()], &bytes)?;
            }
            Part::Done(_) => {}
        }
        self.followed |= self.streams;
        Ok(())
    }

    fn add_frames(
        &mut self,
        stream: &mut TcpStream,
        kind: Kind,
        start: &[u8],
        bytes: &[u8],
    ) -> io::Result<()> {
        for part in bytes.chunks(PART_BYTES_MAX) {
            self.bytes.extend(encode(kind, &[start, part].concat()));
            if self.bytes.len() >= OUTBOX_BYTES_MAX {
                self.send(stream)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.followed = false;
        let sent = stream.write_all(&self.bytes);
        self.bytes.clear();
        sent
    }
}

/// Serves a connection to its end.
pub(super) fn serve(mut stream: TcpStream, calls: &Calls, handler: &Handler) {
    // Small frames must not wait for the other side's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    loop {
        match serve_one(&mut stream, calls, handler) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                eprintln!("pandastack-guest function: a connection ended: {error}");
                return;
            }
        }
    }
}

/// `false` at the connection's end.
fn serve_one(stream: &mut TcpStream, calls: &Calls, handler: &Handler) -> io::Result<bool> {
    let mut head = [0; FRAME_HEAD_BYTES];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let (kind, length) = decode_head(head).map_err(io::Error::other)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    match kind {
        Kind::Await => {
            let Await { wait_ms } = decode_json(&payload).map_err(io::Error::other)?;
            let ready = calls.await_ready(Duration::from_millis(wait_ms));
            stream.write_all(&encode_json(Kind::Ready, &ready))?;
        }
        Kind::Invoke => invoke(stream, &payload, calls, handler)?,
        _ => return Err(io::Error::other("a frame that only the runtime sends")),
    }
    Ok(true)
}

fn invoke(stream: &mut TcpStream, payload: &[u8], calls: &Calls, handler: &Handler) -> io::Result<()> {
    let begun = Instant::now();
    let (call, event) = decode_invoke(payload).map_err(io::Error::other)?;
    let deadline = begun + Duration::from_millis(call.timeout_ms);
    let (id, timeout_ms) = (call.id.clone(), call.timeout_ms);
    let parts = calls.submit(call, event.to_vec(), deadline);
    let mut outbox = Outbox::default();
    let done = match pass_on(stream, &mut outbox, &parts, deadline)? {
        Some(done) => done,
        None => {
            handler.kill();
            // The remaining output, then the end.
            let ended = pass_on(stream, &mut outbox, &parts, Instant::now() + KILL_WAIT)?;
            calls.finish(&id, None, Outcome::Timeout, None);
            CallEnd {
                answer: None,
                outcome: Outcome::Timeout,
                message: Some(format!("the call took longer than {timeout_ms} ms and was killed")),
                exit_code: None,
                log_dropped_bytes: ended.map_or(0, |done| done.log_dropped_bytes),
            }
        }
    };
    let mut memory_peak_kb = None;
    if let Some(answered) = done.answer {
        memory_peak_kb = answered.memory_peak_kb;
        outbox.add(stream, Part::Head(answered.head))?;
        outbox.add(stream, Part::Data(answered.body))?;
    }
    let end = End {
        outcome: done.outcome,
        message: done.message,
        exit_code: done.exit_code,
        duration_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        memory_peak_kb: memory_peak_kb.unwrap_or_else(|| handler.memory_peak_kb()),
        log_dropped_bytes: done.log_dropped_bytes,
    };
    outbox.bytes.extend(encode_json(Kind::End, &end));
    outbox.send(stream)
}

/// Forwards parts until the call is done; `None` if it times out first. Frames left in the outbox are sent
/// with the end.
fn pass_on(
    stream: &mut TcpStream,
    outbox: &mut Outbox,
    parts: &Receiver<Part>,
    until: Instant,
) -> io::Result<Option<CallEnd>> {
    loop {
        let at_hand = parts.try_recv().ok();
        if at_hand.is_none() && outbox.followed {
            outbox.send(stream)?;
        }
        let left = until.saturating_duration_since(Instant::now());
        let part = match at_hand.map_or_else(|| parts.recv_timeout(left), Ok) {
            Ok(Part::Done(done)) => return Ok(Some(done)),
            Ok(part) => part,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let message = Some("the runtime lost the call".to_owned());
                let (outcome, exit_code) = (Outcome::Crashed, None);
                return Ok(Some(CallEnd { answer: None, outcome, message, exit_code, log_dropped_bytes: 0 }));
            }
        };
        outbox.add(stream, part)?;
    }
}
