//! Calls in progress: a queue to the handler, and a response channel for each.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pandastack_function_proto::{Call, Head, LOG_BYTES_MAX, Outcome, Ready, Stream};

/// Parts of an answer that wait for a slow connection. Beyond it the handler waits.
const PARTS_WAITING_MAX: usize = 16;
/// Bytes of output kept between calls; the next call gets them.
const BETWEEN_BYTES_MAX: usize = 64 * 1024;

/// A part of the response of a call.
#[derive(Debug)]
pub(super) enum Part {
    Log(Stream, Vec<u8>),
    Head(Head),
    Data(Vec<u8>),
    Done(CallEnd),
}

/// The end of a call.
#[derive(Debug, Clone)]
pub(super) struct CallEnd {
    /// The answer, unless it was already streamed.
    pub(super) answer: Option<HandlerResponse>,
    pub(super) outcome: Outcome,
    pub(super) message: Option<String>,
    pub(super) exit_code: Option<i32>,
    pub(super) log_dropped_bytes: u64,
}

/// The response of a handler.
#[derive(Debug, Clone)]
pub(super) struct HandlerResponse {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
    /// Peak memory so far in KiB, if reported.
    pub(super) memory_peak_kb: Option<u64>,
}

/// Phase of the handler.
#[derive(Debug, Clone)]
enum Phase {
    Starting,
    Ready,
    /// The handler never became ready, or it ended.
    Over {
        message: String,
        exit_code: Option<i32>,
    },
}

/// A call that the handler takes.
#[derive(Debug)]
pub(super) struct HandlerCall {
    pub(super) call: Call,
    pub(super) event: Vec<u8>,
    pub(super) deadline: Instant,
}

#[derive(Debug)]
struct QueuedCall {
    taken: HandlerCall,
    to: SyncSender<Part>,
}

#[derive(Debug)]
struct InFlightCall {
    id: String,
    to: SyncSender<Part>,
    log_left: usize,
    log_dropped: u64,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    waiting: VecDeque<QueuedCall>,
    in_flight: Vec<InFlightCall>,
    /// Printed while no call is in progress.
    between: Vec<(Stream, Vec<u8>)>,
    between_bytes: usize,
}

/// All calls.
#[derive(Debug)]
pub(super) struct Calls {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Calls {
    fn default() -> Self {
        let state = State {
            phase: Phase::Starting,
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            between: Vec::new(),
            between_bytes: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// The channel for a call's response.
#[derive(Debug, Clone)]
pub(super) struct ResponseSender(SyncSender<Part>);

impl ResponseSender {
    /// Sends a part; `false` when the call has no receiver any more.
    pub(super) fn send(&self, part: Part) -> bool {
        self.0.send(part).is_ok()
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call; the receiver returns its parts.
    pub(super) fn submit(&self, call: Call, event: Vec<u8>, deadline: Instant) -> Receiver<Part> {
        let (to, parts) = sync_channel(PARTS_WAITING_MAX);
        let mut state = self.lock();
        if let Phase::Over { message, exit_code } = &state.phase {
            let done = CallEnd {
                answer: None,
                outcome: Outcome::Crashed,
                message: Some(message.clone()),
                exit_code: *exit_code,
                log_dropped_bytes: 0,
            };
            let _ = to.try_send(Part::Done(done));
            return parts;
        }
        state.waiting.push_back(QueuedCall { taken: HandlerCall { call, event, deadline }, to });
        self.changed.notify_all();
        parts
    }

    /// The next call, for the handler, which is ready from now on. `None` when there will be none.
    pub(super) fn next(&self) -> Option<HandlerCall> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Starting) {
            state.phase = Phase::Ready;
            self.changed.notify_all();
        }
        loop {
            if matches!(state.phase, Phase::Over { .. }) {
                return None;
            }
            let Some(waiting) = state.waiting.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let QueuedCall { taken, to } = waiting;
            for (stream, bytes) in std::mem::take(&mut state.between) {
                let _ = to.try_send(Part::Log(stream, bytes));
            }
            state.between_bytes = 0;
            let id = taken.call.id.clone();
            state.in_flight.push(InFlightCall { id, to, log_left: LOG_BYTES_MAX, log_dropped: 0 });
            return Some(taken);
        }
    }

    /// The way back of a call that is in progress.
    pub(super) fn answer(&self, id: &str) -> Option<ResponseSender> {
        let state = self.lock();
        state.in_flight.iter().find(|call| call.id == id).map(|call| ResponseSender(call.to.clone()))
    }

    /// Ends a call. Its printed output has already been recorded.
    pub(super) fn finish(
        &self,
        id: &str,
        answer: Option<HandlerResponse>,
        outcome: Outcome,
        message: Option<String>,
    ) {
        let mut state = self.lock();
        let Some(at) = state.in_flight.iter().position(|call| call.id == id) else { return };
        let call = state.in_flight.swap_remove(at);
        drop(state);
        let done = CallEnd { answer, outcome, message, exit_code: None, log_dropped_bytes: call.log_dropped };
        let _ = call.to.send(Part::Done(done));
    }

    /// Records output: for the oldest call in progress, or for the next one.
    pub(super) fn printed(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.lock();
        let Some(call) = state.in_flight.first_mut() else {
            let room = BETWEEN_BYTES_MAX.saturating_sub(state.between_bytes).min(bytes.len());
            if let Some(kept) = bytes.get(..room).filter(|kept| !kept.is_empty()) {
                state.between_bytes += room;
                state.between.push((stream, kept.to_vec()));
            }
            return;
        };
        let room = call.log_left.min(bytes.len());
        call.log_left -= room;
        call.log_dropped += u64::try_from(bytes.len() - room).unwrap_or_default();
        let (to, kept) = (call.to.clone(), bytes.get(..room).unwrap_or_default().to_vec());
        drop(state);
        if !kept.is_empty() {
            let _ = to.send(Part::Log(stream, kept));
        }
    }

    /// The handler failed to start, or ended: nothing is called any more.
    pub(super) fn end(&self, message: &str, exit_code: Option<i32>) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Over { .. }) {
            state.phase = Phase::Over { message: message.to_owned(), exit_code };
        }
        let in_flight = std::mem::take(&mut state.in_flight);
        let waiting = std::mem::take(&mut state.waiting);
        self.changed.notify_all();
        drop(state);
        let dropped = in_flight.into_iter().map(|call| (call.to, call.log_dropped));
        for (to, log_dropped_bytes) in dropped.chain(waiting.into_iter().map(|waiting| (waiting.to, 0))) {
            let message = Some(message.to_owned());
            let done =
                CallEnd { answer: None, outcome: Outcome::Crashed, message, exit_code, log_dropped_bytes };
            let _ = to.send(Part::Done(done));
        }
    }

    /// Waits until the handler is ready or never will be.
    pub(super) fn await_ready(&self, wait: Duration) -> Ready {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        while matches!(state.phase, Phase::Starting) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let text: Vec<u8> = state.between.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let log = String::from_utf8_lossy(&text).into_owned();
        let (ready, failure) = match &state.phase {
            Phase::Starting => (false, None),
            Phase::Ready => (true, None),
            Phase::Over { message, .. } => (false, Some(message.clone())),
        };
        if ready {
            // Output of the start belongs to the deploy, not to the first call of every copy.
            state.between.clear();
            state.between_bytes = 0;
        }
        Ready { generation: pandastack_function_proto::GENERATION, ready, failure, log }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Call {
        Call { id: id.to_owned(), timeout_ms: 1000, ..Call::default() }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn a_call_reaches_the_handler_and_returns_its_parts() {
        let calls = Calls::default();
        let parts = calls.submit(call("a"), b"{}".to_vec(), later());
        assert_eq!(calls.next().unwrap().call.id, "a");
        calls.printed(Stream::Stdout, b"hello");
        assert!(calls.answer("a").unwrap().send(Part::Data(b"1".to_vec())));
        calls.finish("a", None, Outcome::Success, None);
        assert!(matches!(parts.recv().unwrap(), Part::Log(Stream::Stdout, text) if text == b"hello"));
        assert!(matches!(parts.recv().unwrap(), Part::Data(_)));
        assert!(matches!(parts.recv().unwrap(), Part::Done(done) if done.outcome == Outcome::Success));
        assert!(calls.answer("a").is_none());
    }

    #[test]
    fn output_beyond_the_limit_is_counted_and_dropped() {
        let calls = Calls::default();
        let parts = calls.submit(call("a"), Vec::new(), later());
        calls.next().unwrap();
        calls.printed(Stream::Stderr, &vec![b'x'; LOG_BYTES_MAX]);
        calls.printed(Stream::Stderr, b"too much");
        calls.finish("a", None, Outcome::Success, None);
        assert!(matches!(parts.recv().unwrap(), Part::Log(_, text) if text.len() == LOG_BYTES_MAX));
        assert!(matches!(parts.recv().unwrap(), Part::Done(done) if done.log_dropped_bytes == 8));
    }

    #[test]
    fn output_between_calls_goes_to_the_next_call_up_to_a_limit() {
        let calls = Calls::default();
        calls.printed(Stream::Stdout, &vec![b'x'; BETWEEN_BYTES_MAX + 1]);
        let parts = calls.submit(call("a"), Vec::new(), later());
        calls.next().unwrap();
        assert!(matches!(parts.recv().unwrap(), Part::Log(_, text) if text.len() == BETWEEN_BYTES_MAX));
    }

    #[test]
    fn a_process_exit_ends_every_call() {
        let calls = Calls::default();
        let (first, second) =
            (calls.submit(call("a"), Vec::new(), later()), calls.submit(call("b"), Vec::new(), later()));
        calls.next().unwrap();
        calls.end("it was killed", Some(137));
        for parts in [first, second, calls.submit(call("c"), Vec::new(), later())] {
            let done = parts.recv().unwrap();
            assert!(matches!(done, Part::Done(done) if done.exit_code == Some(137)));
        }
        assert!(calls.next().is_none());
        assert_eq!(calls.await_ready(Duration::ZERO).failure.as_deref(), Some("it was killed"));
    }

    #[test]
    fn a_runtime_is_ready_when_it_requests_its_first_call() {
        let calls = std::sync::Arc::new(Calls::default());
        assert!(!calls.await_ready(Duration::ZERO).ready);
        let asking = std::sync::Arc::clone(&calls);
        let asker = std::thread::spawn(move || asking.next().is_none());
        assert!(calls.await_ready(Duration::from_secs(5)).ready);
        calls.end("over", None);
        assert!(asker.join().unwrap());
    }
}
