//! The protocol between the control server and the function runtime inside a machine.
//!
//! A connection to [`PORT`] of a function's machine carries frames, one call after another:
//!
//! ```text
//!   control                      runtime
//!   Await  {wait_ms}        -->            waits until the handler asks for its first event
//!                           <--  Ready  {generation, ...}
//!
//!   Invoke {call}{event}    -->
//!                           <--  Log    what the handler printed, while it prints it
//!                           <--  Head   {streaming}         once the answer begins
//!                           <--  Data   parts of the answer
//!                           <--  End    {outcome, ...}      always the last one of a call
//! ```
//!
//! A frame is a kind (one byte), a length (four bytes, big-endian) and that many bytes. JSON inside
//! frames only ever gains optional fields, because a runtime is frozen into the snapshot of its
//! function's version and must be understood years later; [`GENERATION`] counts all other changes.
//!
//! Out of scope: sockets and waiting (both ends have their own), the contents of an event.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// Port on which the runtime listens inside a function's machine.
pub const PORT: u16 = 49_910;
/// Port of the runtime API for the handler's process, inside the machine only.
pub const RUNTIME_API_PORT: u16 = 9_001;
/// Protocol generation of this program.
pub const GENERATION: u32 = 1;
/// Bytes before a frame's payload.
pub const FRAME_HEAD_BYTES: usize = 5;
/// Largest payload of a frame: the largest event with its metadata. A larger one ends the
/// connection.
pub const FRAME_BYTES_MAX: usize = EVENT_BYTES_MAX + 64 * 1024;
/// Largest event of a direct call. Beyond it: 413 before anything is sent.
pub const EVENT_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Largest answer of a call that does not stream. Beyond it the call fails with `ResponseTooLarge`.
pub const ANSWER_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Bytes of one `Data` or `Log` frame.
pub const PART_BYTES_MAX: usize = 64 * 1024;
/// Bytes of output that are passed on for one call. Output beyond them is read, counted and
/// dropped.
pub const LOG_BYTES_MAX: usize = 256 * 1024;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the runtime: [`Await`].
    Await = 1,
    /// To the runtime: see [`encode_invoke`].
    Invoke = 2,
    /// From the runtime: [`Ready`].
    Ready = 16,
    /// From the runtime: one byte that is the [`Stream`], then what was printed.
    Log = 17,
    /// From the runtime: [`Head`].
    Head = 18,
    /// From the runtime: a part of the answer.
    Data = 19,
    /// From the runtime: [`End`].
    End = 20,
}

/// Bytes that are not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// A kind that this generation does not know.
    UnknownKind(u8),
    /// A length beyond [`FRAME_BYTES_MAX`].
    TooLong(u32),
    /// A payload that does not match its kind.
    Malformed(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::UnknownKind(kind) => write!(f, "a frame of the unknown kind {kind}"),
            FrameError::TooLong(length) => {
                write!(f, "a frame of {length} bytes, more than {FRAME_BYTES_MAX}")
            }
            FrameError::Malformed(why) => write!(f, "a malformed frame: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

impl TryFrom<u8> for Kind {
    type Error = FrameError;
    fn try_from(byte: u8) -> Result<Self, FrameError> {
        let known = [Kind::Await, Kind::Invoke, Kind::Ready, Kind::Log, Kind::Head, Kind::Data, Kind::End];
        known.into_iter().find(|kind| *kind as u8 == byte).ok_or(FrameError::UnknownKind(byte))
    }
}

/// An output stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Its value in a frame.
    pub fn byte(self) -> u8 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    /// Decodes a stream; an unknown byte counts as standard output.
    pub fn of(byte: u8) -> Self {
        if byte == 2 { Stream::Stderr } else { Stream::Stdout }
    }
}

/// Queries whether the handler is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Await {
    /// Longest time that the runtime may wait with its answer.
    pub wait_ms: u64,
}

/// Progress of the handler's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Protocol generation of the runtime.
    pub generation: u32,
    /// Whether the handler asked for its first event.
    pub ready: bool,
    /// Reason why it will never be ready; `None` while it is starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Output of the start.
    #[serde(default)]
    pub log: String,
}

/// Metadata of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Names the call, in all of its attempts.
    pub id: String,
    /// Milliseconds from now until the handler is killed.
    pub timeout_ms: u64,
    /// Passed on as `Lambda-Runtime-Invoked-Function-Arn`.
    #[serde(default)]
    pub arn: String,
    /// Number of this attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// Passed on as `Lambda-Runtime-Trace-Id`.
    #[serde(default)]
    pub trace_id: String,
    /// Names the machine: when it changes, the process was copied and needs fresh random numbers.
    #[serde(default)]
    pub instance: String,
    /// The event is an HTTP request (payload 2.0): `fetch` style handlers get a request.
    #[serde(default)]
    pub http: bool,
}

/// Start of the response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Whether the response comes in parts, as the handler creates them.
    #[serde(default)]
    pub streaming: bool,
    /// The content type that the handler set.
    #[serde(default)]
    pub content_type: String,
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The handler answered.
    Success,
    /// The handler failed; the answer is its error as JSON.
    Error,
    /// The call took too long and was killed.
    Timeout,
    /// The process ended.
    Crashed,
}

/// A call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Outcome.
    pub outcome: Outcome,
    /// A message, if the outcome is neither success nor the handler's own error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Exit code of the process, where it ended; 128 + signal when killed by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// From the event's arrival to the end of the answer.
    pub duration_us: u64,
    /// Most memory the handler's process had so far.
    #[serde(default)]
    pub memory_peak_kb: u64,
    /// Bytes that it printed beyond [`LOG_BYTES_MAX`].
    #[serde(default)]
    pub log_dropped_bytes: u64,
}

/// A frame.
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_HEAD_BYTES + payload.len());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A frame with JSON in it.
pub fn encode_json<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    // Plain structs of text and numbers, which JSON can always represent.
    encode(kind, &serde_json::to_vec(value).unwrap_or_default())
}

/// An `Invoke` frame: the length of the call's JSON in four bytes, the JSON, the event.
pub fn encode_invoke(call: &Call, event: &[u8]) -> Vec<u8> {
    let call = serde_json::to_vec(call).unwrap_or_default();
    let mut payload = Vec::with_capacity(4 + call.len() + event.len());
    payload.extend_from_slice(&u32::try_from(call.len()).unwrap_or(u32::MAX).to_be_bytes());
    payload.extend_from_slice(&call);
    payload.extend_from_slice(event);
    encode(Kind::Invoke, &payload)
}

/// Reads the payload of an `Invoke` frame: the call, and the event behind it.
pub fn decode_invoke(payload: &[u8]) -> Result<(Call, &[u8]), FrameError> {
    let short = || FrameError::Malformed("it ends within what is said about the call".to_owned());
    let (length, rest) = payload.split_first_chunk::<4>().ok_or_else(short)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let (call, event) = rest.split_at_checked(length).ok_or_else(short)?;
    Ok((decode_json(call)?, event))
}

/// Reads JSON of a frame.
pub fn decode_json<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|error| FrameError::Malformed(error.to_string()))
}

/// Reads what precedes a payload: its kind and length.
pub fn decode_head(head: [u8; FRAME_HEAD_BYTES]) -> Result<(Kind, usize), FrameError> {
    let [kind, a, b, c, d] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if bytes > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(length));
    }
    Ok((Kind::try_from(kind)?, bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_call_round_trips_through_its_encoding() {
        let call = Call { id: "x".into(), timeout_ms: 3000, attempt: 2, ..Call::default() };
        let frame = encode_invoke(&call, b"{\"a\":1}");
        let (kind, length) = decode_head(*frame.first_chunk().unwrap()).unwrap();
        assert_eq!((kind, length), (Kind::Invoke, frame.len() - FRAME_HEAD_BYTES));
        let (read, event) = decode_invoke(&frame[FRAME_HEAD_BYTES..]).unwrap();
        assert_eq!((read, event), (call, &b"{\"a\":1}"[..]));
    }

    #[test]
    fn invalid_input_is_rejected() {
        assert_eq!(decode_head([99, 0, 0, 0, 0]), Err(FrameError::UnknownKind(99)));
        let largest = u32::try_from(FRAME_BYTES_MAX).unwrap();
        let head = |length: u32| {
            let [a, b, c, d] = length.to_be_bytes();
            decode_head([Kind::Data as u8, a, b, c, d])
        };
        assert_eq!(head(largest), Ok((Kind::Data, FRAME_BYTES_MAX)));
        assert_eq!(head(largest + 1), Err(FrameError::TooLong(largest + 1)));
        for bad in [&[][..], &[0, 0], &[0, 0, 0, 9, b'{'], &[0, 0, 0, 1, b'{']] {
            assert!(decode_invoke(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fields_of_newer_versions_are_ignored() {
        let call: Call = decode_json(br#"{"id":"a","timeout_ms":1,"new":true}"#).unwrap();
        assert_eq!(call.id, "a");
    }
}
