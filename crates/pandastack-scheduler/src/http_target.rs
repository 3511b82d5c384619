//! Requests of schedules to URLs.

use std::time::Duration;

use pandastack_store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};
use pandastack_types::api::HttpTarget;
use pandastack_types::limits::RUN_OUTPUT_BYTES_MAX;
use pandastack_types::{Error, Result};
use pandastack_webhooks::{Webhooks, chain};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::attempt::Attempt;

/// Headers of one target.
const HEADERS_MAX: usize = 64;
/// Longest body of a target.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Headers that belong to the connection.
const OWN_HEADERS: [&str; 5] = ["host", "content-length", "connection", "transfer-encoding", "upgrade"];

/// Refuses a target that could never be called.
pub(crate) fn check(webhooks: &Webhooks, target: &HttpTarget) -> Result<()> {
    webhooks.check_url("target.url", &target.url)?;
    check_request(target)
}

/// Sends the request of a run.
pub(crate) async fn attempt(
    webhooks: &Webhooks,
    target: &HttpTarget,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    limit: Duration,
) -> Attempt {
    let request = match request(webhooks, target, schedule, run) {
        Ok(request) => request,
        Err(error) => return failure(RunState::Error, error.message),
    };
    match tokio::time::timeout(limit, exchange(request)).await {
        Ok(Ok(attempt)) => attempt,
        Ok(Err(error)) => {
            failure(RunState::Error, format!("{} did not respond: {}", target.url, chain(&error)))
        }
        Err(_) => {
            failure(RunState::Timeout, format!("{} did not respond within {} s", target.url, limit.as_secs()))
        }
    }
}

fn request(
    webhooks: &Webhooks,
    target: &HttpTarget,
    schedule: &ScheduleRecord,
    run: &RunRecord,
) -> Result<reqwest::RequestBuilder> {
    let url = webhooks.check_url("target.url", &target.url)?;
    let request = webhooks.client()?.request(method(target)?, url).headers(headers(target)?);
    let request = run_headers(schedule, run)
        .into_iter()
        .fold(request, |request, (name, value)| request.header(name, value));
    Ok(match &target.body {
        Some(body) => request.body(body.clone()),
        None => request,
    })
}

fn failure(state: RunState, error: String) -> Attempt {
    Attempt { state, outcome: RunOutcome { exit_code: -1, error: Some(error), ..RunOutcome::default() } }
}

async fn exchange(request: reqwest::RequestBuilder) -> reqwest::Result<Attempt> {
    let mut response = request.send().await?;
    let status = response.status();
    let mut body = Vec::new();
    let mut truncated = false;
    while let Some(part) = response.chunk().await? {
        let room = RUN_OUTPUT_BYTES_MAX - body.len();
        body.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() > room {
            truncated = true;
            break;
        }
    }
    Ok(judge_response(status, &body, truncated))
}

/// Result of an attempt, by the response.
pub(crate) fn judge_response(status: reqwest::StatusCode, body: &[u8], truncated: bool) -> Attempt {
    let is_good = status.is_success();
    let outcome = RunOutcome {
        exit_code: if is_good { 0 } else { -1 },
        http_status: Some(status.as_u16()),
        stdout: String::from_utf8_lossy(body).into_owned(),
        truncated,
        error: (!is_good).then(|| format!("the response status was {status}")),
        ..RunOutcome::default()
    };
    Attempt { state: if is_good { RunState::Success } else { RunState::Error }, outcome }
}

/// Headers of a run. The key is the same for every attempt of the run, so that a receiver can
/// detect a repetition.
pub(crate) fn run_headers(schedule: &ScheduleRecord, run: &RunRecord) -> [(&'static str, String); 5] {
    [
        ("idempotency-key", run.id.to_string()),
        ("x-pandastack-schedule-id", schedule.id.to_string()),
        ("x-pandastack-run-id", run.id.to_string()),
        ("x-pandastack-attempt", run.attempt.to_string()),
        ("x-pandastack-scheduled-for", run.scheduled_for.to_string()),
    ]
}

/// Refuses a request that could never be sent, to any address.
pub(crate) fn check_request(target: &HttpTarget) -> Result<()> {
    method(target)?;
    headers(target)?;
    match &target.body {
        Some(body) if body.len() > BODY_BYTES_MAX => {
            Err(Error::bad_request(format!("`target.body` must be at most {BODY_BYTES_MAX} bytes")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn method(target: &HttpTarget) -> Result<reqwest::Method> {
    let text = target.method.as_deref().unwrap_or("POST");
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    match known.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => reqwest::Method::from_bytes(known.as_bytes()).map_err(Error::internal),
        None => Err(Error::bad_request(format!("`target.method` must be one of {}", known.join(", ")))),
    }
}

pub(crate) fn headers(target: &HttpTarget) -> Result<HeaderMap> {
    if target.headers.len() > HEADERS_MAX {
        return Err(Error::bad_request(format!("`target.headers` can have at most {HEADERS_MAX} headers")));
    }
    let mut map = HeaderMap::new();
    for (name, value) in &target.headers {
        let shown: String = name.chars().take(64).collect();
        let refuse = |why: &str| Error::bad_request(format!("header `{shown}` in `target.headers` {why}"));
        if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(refuse("is set by the connection; leave it out"));
        }
        let name: HeaderName = name.parse().map_err(|_| refuse("is not a valid header name"))?;
        let value: HeaderValue = value.parse().map_err(|_| refuse("is not a valid header value"))?;
        map.insert(name, value);
    }
    Ok(map)
}
