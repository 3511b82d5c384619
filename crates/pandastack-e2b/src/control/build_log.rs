//! Logs and failures of builds in the form of E2B's clients. Clients count the entries that they got, so
//! each line is one entry.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use pandastack_types::api::{Build, BuildStatus};
use pandastack_types::sse::Reader;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::build_steps::PREAMBLE_STEPS;
use crate::error::RestResult;
use crate::limits::EVENT_BYTES_MAX;
use crate::native::{Caller, NativeError, NativeResult};
use crate::native_paths as paths;

/// Longest wait for the last lines of a build that ended.
const LAST_LINES_WAIT: Duration = Duration::from_secs(20);

/// Entries from a line on.
pub(super) async fn read(
    caller: &Caller,
    build: &Build,
    offset: u64,
    limit: usize,
) -> RestResult<Vec<Value>> {
    let is_over = matches!(build.status, BuildStatus::Done | BuildStatus::Failed);
    // The last lines of a log may arrive after the build's final status: clients read on until a
    // page is empty.
    let path = if is_over {
        paths::follow_build_log(&build.id, offset)
    } else {
        paths::build_log(&build.id, offset)
    };
    let mut found = Vec::new();
    // On a timeout, the lines read so far are returned.
    if let Ok(read) = timeout(LAST_LINES_WAIT, read_lines(caller, &path, limit, &mut found)).await {
        read?;
    }
    let at = build.ended_at.unwrap_or_else(Timestamp::now);
    Ok(found.iter().map(|line| entry(line, at)).collect())
}

async fn read_lines(caller: &Caller, path: &str, limit: usize, lines: &mut Vec<String>) -> NativeResult<()> {
    let mut body = caller.open(path).await?.into_body().into_data_stream();
    let mut reader = Reader::new(EVENT_BYTES_MAX);
    let broken = |error: String| NativeError::new(http::StatusCode::BAD_GATEWAY, error);
    while lines.len() < limit {
        let event = reader.next_event().map_err(|error| broken(error.to_string()))?;
        match event {
            Some(event) if event.name == "done" => break,
            Some(event) => lines.push(event.data),
            None => match body.next().await {
                Some(Ok(bytes)) => reader.push(&bytes),
                Some(Err(_)) => return Err(broken("the build log was interrupted; try again".to_owned())),
                None => break,
            },
        }
    }
    Ok(())
}

/// A line of a native log: `#3 [3/7] RUN make`, `#3 0.512 text`, `#3 DONE 2.1s`, or a sentence.
fn entry(line: &str, at: Timestamp) -> Value {
    let numbered = line.strip_prefix('#').and_then(|rest| rest.split_once(' '));
    let numbered = numbered.and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
    let Some((number, rest)) = numbered else {
        let level = if line.starts_with("failed: ") { "error" } else { "info" };
        return json!({ "timestamp": at, "level": level, "message": line });
    };
    let own = number.saturating_sub(PREAMBLE_STEPS);
    let (first, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let (level, message) = match first {
        "DONE" | "CACHED" => ("debug", rest.to_owned()),
        "ERROR:" => ("error", rest.to_owned()),
        _ if first.starts_with('[') => match total(first) {
            Some(total) if own > 0 => {
                ("info", format!("[{own}/{}] {text}", total.saturating_sub(PREAMBLE_STEPS)))
            }
            _ => (if number == 1 { "info" } else { "debug" }, format!("[base] {text}")),
        },
        _ if first.parse::<f64>().is_ok() => ("info", text.to_owned()),
        _ => ("info", rest.to_owned()),
    };
    json!({ "timestamp": at, "level": level, "message": message, "step": step_name(number) })
}

/// The total in `[3/7]`.
fn total(text: &str) -> Option<usize> {
    text.strip_prefix('[')?.strip_suffix(']')?.split_once('/')?.1.parse().ok()
}

/// The client's own number of a step.
fn step_name(number: usize) -> String {
    match number.checked_sub(PREAMBLE_STEPS) {
        None | Some(0) => "base".to_owned(),
        Some(own) => own.to_string(),
    }
}

/// The reason for a build's failure, and its step. Failures outside a step count as after the last.
pub(super) fn reason(build: &Build) -> Value {
    let failure = build.failure.clone().unwrap_or_default();
    let message = build.error.clone().unwrap_or_else(|| "the build failed".to_owned());
    let Some(number) = failure.step else {
        return json!({ "message": message, "step": "finalize", "logEntries": [] });
    };
    let (step, instruction) = (step_name(number), failure.instruction.unwrap_or_default());
    let why = message.split_once(&format!(" (`{instruction}`): ")).map_or(message.as_str(), |(_, why)| why);
    let at = build.ended_at.unwrap_or_else(Timestamp::now);
    let line = |line: &String| json!({ "timestamp": at, "level": "error", "message": line, "step": step });
    let output: Vec<Value> = failure.output.iter().map(line).collect();
    let place = if step == "base" { step.clone() } else { format!("step {step}") };
    json!({ "message": format!("{place} (`{instruction}`): {why}"), "step": step, "logEntries": output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_log_lines_use_the_clients_step_numbers() {
        let at = Timestamp::UNIX_EPOCH;
        let shown = |line: &str| {
            let entry = entry(line, at);
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            (text("level"), text("step"), text("message"))
        };
        for (line, level, step, message) in [
            ("#1 [1/7] FROM base", "info", "base", "[base] FROM base"),
            ("#3 [3/7] USER user", "debug", "base", "[base] USER user"),
            ("#7 [7/9] RUN echo [x]", "info", "1", "[1/3] RUN echo [x]"),
            ("#7 0.512 the output", "info", "1", "the output"),
            ("#7 0.512 ", "info", "1", ""),
            ("#8 DONE 2.1s", "debug", "2", "DONE 2.1s"),
            ("#8 ERROR: the command failed", "error", "2", "ERROR: the command failed"),
            ("failed: step 5", "error", "", "failed: step 5"),
            ("template mine is ready", "info", "", "template mine is ready"),
        ] {
            let expect = (level.to_owned(), step.to_owned(), message.to_owned());
            assert_eq!(shown(line), expect, "{line}");
        }
    }

    #[test]
    fn a_failure_names_the_clients_step_number() {
        let mut build: Build = serde_json::from_value(json!({
            "id": "b", "name": "mine", "status": "failed", "phase": "failed", "started_at": "2026-01-01T00:00:00Z",
            "error": "step 8 (`RUN exit 3`): the command failed with exit code 3",
            "failure": { "step": 8, "instruction": "RUN exit 3", "exit_code": 3, "output": ["last words"] },
        }))
        .unwrap();
        let shown = reason(&build);
        assert_eq!(shown["step"], "2");
        assert_eq!(shown["message"], "step 2 (`RUN exit 3`): the command failed with exit code 3");
        assert_eq!(shown["logEntries"][0]["message"], "last words");
        build.failure = None;
        assert_eq!(reason(&build)["step"], "finalize");
    }
}
