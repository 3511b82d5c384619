//! One call of a function: acquires a machine, sends the event, returns the response, and records
//! the run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pandastack_function_proto::{Call, End, Head, Outcome, Stream};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, RunRecord};
use pandastack_types::api::{FunctionRunStatus, Run, RunKind};
use pandastack_types::limits::{EVENT_BYTES_MAX, RUN_OUTPUT_BYTES_MAX};
use pandastack_types::{Error, ErrorCode, Result, RunId, SandboxId};

use crate::connection::RuntimeFrame;
use crate::functions::Functions;
use crate::pool::SlotLease;
use crate::tail::Line;
use crate::{settings, versions};

/// Time that a call is waited for beyond its timeout: the runtime kills the handler and reports it.
const GRACE: Duration = Duration::from_secs(15);

/// A call to make.
pub struct InvokeRequest {
    /// Names the run.
    pub id: RunId,
    /// Kind of call.
    pub kind: RunKind,
    /// The version that is called.
    pub version: u32,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// The event for the handler.
    pub event: Bytes,
    /// The event is an HTTP request.
    pub http: bool,
    /// When it was requested.
    pub requested_at: jiff::Timestamp,
}

impl InvokeRequest {
    /// A call that starts now.
    pub fn new(kind: RunKind, version: u32, event: Bytes) -> Self {
        let http = kind == RunKind::Http;
        Self { id: RunId::random(), kind, version, attempt: 1, event, http, requested_at: now() }
    }
}

/// A call in progress.
pub(crate) struct OngoingCall {
    functions: Arc<Functions>,
    lease: SlotLease,
    function: FunctionRecord,
    request: InvokeRequest,
    began: Instant,
    wait: Duration,
    deadline: tokio::time::Instant,
    stdout: Output,
    stderr: Output,
}

/// Captured output, up to its limit.
#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        let room = RUN_OUTPUT_BYTES_MAX.saturating_sub(self.0.len()).min(bytes.len());
        self.0.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// A part of an answer.
pub(crate) enum Part {
    Head(Head),
    Data(Vec<u8>),
    End(End),
}

/// Result of a call whose response was collected.
pub struct CallResult {
    /// The run's record.
    pub run: Run,
    /// The handler's answer.
    pub body: Bytes,
    /// Result.
    pub outcome: Outcome,
}

/// Starts a call: waits for a place and sends the event.
pub(crate) async fn begin(
    functions: &Arc<Functions>,
    function: &FunctionRecord,
    request: InvokeRequest,
) -> Result<OngoingCall> {
    if request.event.len() > EVENT_BYTES_MAX {
        let message = format!("an event must be at most {EVENT_BYTES_MAX} bytes");
        return Err(Error::new(ErrorCode::BodyTooLarge, message));
    }
    let arrived = Instant::now();
    let pool = versions::pool_of(functions, function, request.version).await?;
    let timeout = settings::timeout(&function.spec.settings);
    let mut lease = pool.lease(&functions.core, settings::limits(&function.spec.settings)).await?;
    let wait = arrived.elapsed();
    let call = Call {
        id: request.id.to_string(),
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        arn: format!("arn:pandastack:function:{}:{}:{}", function.workspace, function.name, request.version),
        attempt: request.attempt,
        trace_id: String::new(),
        instance: lease.sandbox().map(SandboxId::to_string).unwrap_or_default(),
        http: request.http,
    };
    let began = Instant::now();
    lease.drop_dead_connection();
    lease.connection().await?.begin(&call, &request.event).await?;
    Ok(OngoingCall {
        functions: Arc::clone(functions),
        lease,
        function: function.clone(),
        request,
        began,
        wait,
        deadline: tokio::time::Instant::now() + timeout + GRACE,
        stdout: Output::default(),
        stderr: Output::default(),
    })
}

impl OngoingCall {
    /// Returns the next part of the response. Output that arrives before it is stored and sent to
    /// followers.
    pub(crate) async fn next(&mut self) -> Result<Part> {
        loop {
            let connection = self.lease.connection().await?;
            let frame = tokio::time::timeout_at(self.deadline, connection.next()).await;
            let silent =
                |_| Error::new(ErrorCode::GuestUnavailable, "the machine of this call stopped responding");
            match frame.map_err(silent)?? {
                RuntimeFrame::Head(head) => return Ok(Part::Head(head)),
                RuntimeFrame::Data(bytes) => return Ok(Part::Data(bytes)),
                RuntimeFrame::End(end) => return Ok(Part::End(end)),
                RuntimeFrame::Log(stream, bytes) => self.printed(stream, &bytes),
            }
        }
    }

    fn printed(&mut self, stream: Stream, bytes: &[u8]) {
        let output = if stream == Stream::Stderr { &mut self.stderr } else { &mut self.stdout };
        output.push(bytes);
        self.functions.tails.send(Line {
            function: self.function.id.clone(),
            run: self.request.id.clone(),
            stream,
            text: String::from_utf8_lossy(bytes).into_owned(),
        });
    }

    /// Records how it ended and gives the machine back, or has it deleted.
    pub(crate) async fn finish(self, end: &End, body: &[u8]) -> Run {
        let mut run = self.run(end, body);
        if matches!(end.outcome, Outcome::Success | Outcome::Error) {
            self.lease.answered();
        } else {
            drop(self.lease);
        }
        run.ended_at = Some(now());
        self.functions.count(&run);
        if self.request.kind != RunKind::Async {
            record(&self.functions, &self.function, run.clone(), Some(run.billed_ms)).await;
        }
        run
    }

    /// Records that it failed for reasons that are not the handler's. The machine is deleted.
    pub(crate) async fn fail(self, error: &Error) -> Run {
        let end = End {
            outcome: Outcome::Crashed,
            message: Some(error.message.clone()),
            exit_code: None,
            duration_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            memory_peak_kb: 0,
            log_dropped_bytes: 0,
        };
        self.finish(&end, &[]).await
    }

    fn run(&self, end: &End, body: &[u8]) -> Run {
        let status = match end.outcome {
            Outcome::Success => FunctionRunStatus::Success,
            Outcome::Timeout => FunctionRunStatus::Timeout,
            Outcome::Error | Outcome::Crashed => FunctionRunStatus::Error,
        };
        let output = serde_json::from_slice(body).ok();
        let failed = status != FunctionRunStatus::Success;
        let error = failed.then(|| end.message.clone().unwrap_or_else(|| handler_error(output.as_ref())));
        let mut stderr = self.stderr.text();
        if end.log_dropped_bytes > 0 {
            stderr.push_str(&format!("\n[{} more bytes were printed and not kept]\n", end.log_dropped_bytes));
        }
        let billed = self.began.elapsed().as_millis()
            + u128::from(!self.began.elapsed().subsec_micros().is_multiple_of(1000));
        Run {
            id: self.request.id.clone(),
            function_id: self.function.id.clone(),
            schedule_id: None,
            sandbox_id: self.lease.sandbox().cloned(),
            kind: self.request.kind,
            status,
            exit_code: if failed { end.exit_code.filter(|code| *code != 0).unwrap_or(1) } else { 0 },
            stdout: self.stdout.text(),
            stderr,
            output,
            error,
            duration_ms: milliseconds(Duration::from_micros(end.duration_us)),
            billed_ms: u64::try_from(billed).unwrap_or(u64::MAX),
            wait_ms: milliseconds(self.wait),
            cold: self.lease.cold,
            memory_peak_mb: end.memory_peak_kb / 1024,
            version: self.request.version,
            attempt: self.request.attempt,
            dead_letter: false,
            notices: 0,
            next_attempt_at: None,
            started_at: self.request.requested_at,
            ended_at: None,
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// The handler's own error in a line.
fn handler_error(output: Option<&serde_json::Value>) -> String {
    let text = |name: &str| output.and_then(|value| value.get(name)?.as_str()).unwrap_or_default();
    match (text("errorType"), text("errorMessage")) {
        ("", "") => "the handler failed".to_owned(),
        (kind, message) => format!("{kind}: {message}"),
    }
}

/// Makes a call and collects its answer.
pub async fn call(
    functions: &Arc<Functions>,
    function: &FunctionRecord,
    request: InvokeRequest,
) -> Result<CallResult> {
    let mut ongoing = begin(functions, function, request).await?;
    let mut body = Vec::new();
    loop {
        match ongoing.next().await {
            Ok(Part::Head(_)) => {}
            Ok(Part::Data(part))
                if body.len() + part.len() <= pandastack_function_proto::ANSWER_BYTES_MAX =>
            {
                body.extend_from_slice(&part);
            }
            Ok(Part::Data(_)) => {
                let error = Error::new(
                    ErrorCode::GuestUnavailable,
                    "the response is too large; stream it over the function's URL",
                );
                ongoing.fail(&error).await;
                return Err(error);
            }
            Ok(Part::End(end)) => {
                let run = ongoing.finish(&end, &body).await;
                return Ok(CallResult { run, body: body.into(), outcome: end.outcome });
            }
            Err(error) => {
                ongoing.fail(&error).await;
                return Err(error);
            }
        }
    }
}

/// Records a call, after the response.
pub(crate) async fn record(functions: &Functions, function: &FunctionRecord, run: Run, used_ms: Option<u64>) {
    let workspace = function.workspace.clone();
    let record = RunRecord { workspace, run, queued: false, due_at: None, event: None, used_ms };
    functions.runs.put(record).await;
}
