//! Dead letters: `Event` calls that failed all retries. They are kept with their event, reported, and
//! requeued on demand.
//!
//! A dead letter with a pending notification stays in the queue, due like a call, until
//! `dead_letter_url` accepted it or the attempts are used up. So a server that is killed forgets no
//! notice; it may give one twice.

use std::sync::Arc;

use jiff::SignedDuration;
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, RunRecord, RunSelect};
use pandastack_types::api::{FunctionRunStatus, FunctionSettings, Redriven, Run};
use pandastack_types::limits::DEAD_LETTER_NOTICES_MAX;
use pandastack_types::{Error, Result};
use serde_json::json;

use crate::functions::Functions;
use crate::queue::{backoff, jitter_percent};
use crate::versions;

/// Calls that are queued again in one request.
const REDRIVEN_MAX: u32 = 1000;

/// Marks a call as a dead letter.
pub(crate) fn mark(settings: &FunctionSettings, record: &mut RunRecord) {
    if !matches!(record.run.status, FunctionRunStatus::Error | FunctionRunStatus::Timeout) {
        record.run.status = FunctionRunStatus::Error;
    }
    record.run.dead_letter = true;
    record.run.ended_at = Some(now());
    record.run.exit_code = if record.run.exit_code == 0 { 1 } else { record.run.exit_code };
    record.queued = settings.dead_letter_url.is_some();
    record.due_at = record.queued.then(now);
}

/// Notifies of a dead letter, once. The result is stored in the record, which the caller writes.
pub(crate) async fn notify(functions: &Arc<Functions>, record: &mut RunRecord) -> Result<()> {
    let function = match functions.store.function(None, &record.run.function_id).await {
        Ok(function) => function,
        Err(error) => {
            record.queued = false;
            return Err(error.into());
        }
    };
    let told = match &function.spec.settings.dead_letter_url {
        Some(url) => functions.webhooks.deliver("dead_letter_url", url, &notice(&function, record)).await,
        None => Ok(()),
    };
    let Err(why) = told else {
        record.queued = false;
        return Ok(());
    };
    tracing::warn!(run = %record.run.id, notices = record.run.notices, why, "cannot notify dead_letter_url");
    if record.run.notices >= DEAD_LETTER_NOTICES_MAX {
        record.queued = false;
        return Ok(());
    }
    let wait = SignedDuration::try_from(backoff(record.run.notices, jitter_percent()));
    record.due_at = wait.ok().and_then(|wait| now().checked_add(wait).ok()).or_else(|| Some(now()));
    Ok(())
}

fn notice(function: &FunctionRecord, record: &RunRecord) -> serde_json::Value {
    let event = record.event.as_deref().unwrap_or_default();
    let event: serde_json::Value = serde_json::from_slice(event).unwrap_or_default();
    json!({
        "event": "function.dead_letter",
        "function": {"id": function.id, "name": function.name},
        "run": record.run,
        "input": event,
    })
}

/// Queues a dead letter again, as a new call with the same id, for the current version.
pub(crate) async fn redrive(
    functions: &Functions,
    function: &FunctionRecord,
    mut record: RunRecord,
) -> Result<Run> {
    if !record.run.dead_letter || record.event.is_none() {
        return Err(Error::conflict(format!(
            "run {} is not a dead letter; only calls with `dead_letter` can be queued again",
            record.run.id
        )));
    }
    if record.queued {
        return Err(Error::conflict(format!(
            "run {} is being reported to dead_letter_url; queue it again in a moment",
            record.run.id
        )));
    }
    let at = now();
    record.run = Run {
        version: versions::version_for(function, None)?,
        status: FunctionRunStatus::Queued,
        exit_code: 0,
        attempt: 0,
        dead_letter: false,
        notices: 0,
        error: None,
        ended_at: None,
        started_at: at,
        next_attempt_at: Some(at),
        ..record.run
    };
    (record.queued, record.due_at) = (true, Some(at));
    functions.run_store.enqueue_run(&record).await?;
    functions.queued.notify_one();
    Ok(record.run)
}

/// Queues all of them again, oldest last; as many as one request does.
pub(crate) async fn redrive_all(functions: &Functions, function: &FunctionRecord) -> Result<Redriven> {
    versions::version_for(function, None)?;
    let select = RunSelect { dead_letters: true, limit: REDRIVEN_MAX };
    let mut redriven = 0;
    for record in functions.run_store.function_runs(&function.id, select).await? {
        match redrive(functions, function, record).await {
            Ok(_) => redriven += 1,
            // Another process was faster, or the call's notice is in progress: count it as skipped.
            Err(error) if error.code == pandastack_types::ErrorCode::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Redriven { redriven, left: functions.run_store.count_dead_letters(&function.id).await? })
}
