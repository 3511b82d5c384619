//! Executes a schedule's target: one attempt of one run.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pandastack_store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};
use pandastack_types::api::{
    CommandTarget, ExecRequest, ExecResult, RunRequest, SandboxAction, SandboxTarget, ScheduleTarget,
    TemplateTarget,
};
use pandastack_types::limits::{EXEC_TIMEOUT_SECONDS_DEFAULT, RUN_OUTPUT_BYTES_MAX};
use pandastack_types::{Error, ErrorCode, Result, SandboxId};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, Runner};
use crate::scheduler::Scheduler;
use crate::{app_target, http_target};

/// Time beyond a target's own timeout to report it.
const GRACE: Duration = Duration::from_secs(60);

/// Time for a killed command to end before it is checked again.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// The real one.
pub(crate) struct Targets(pub(crate) Arc<Scheduler>);

#[async_trait]
impl Runner for Targets {
    async fn attempt(&self, schedule: &ScheduleRecord, run: &RunRecord, stop: &CancellationToken) -> Attempt {
        let began = Instant::now();
        let limit = timeout_of(schedule);
        let late = || Error::new(ErrorCode::ExecTimeout, format!("the run exceeded {} s", limit.as_secs()));
        let ended = tokio::time::timeout(limit + GRACE, dispatch(&self.0, schedule, run, stop)).await;
        let mut attempt = match ended.unwrap_or_else(|_| Err(late())) {
            Ok(attempt) => attempt,
            Err(error) => failed(&error),
        };
        attempt.outcome.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        attempt
    }
}

pub(crate) fn timeout_of(schedule: &ScheduleRecord) -> Duration {
    let seconds = schedule.spec.options.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT);
    Duration::from_secs(seconds)
}

/// An attempt that could not be made, or whose result is unknown.
fn failed(error: &Error) -> Attempt {
    let state = if error.code == ErrorCode::ExecTimeout { RunState::Timeout } else { RunState::Error };
    let outcome = RunOutcome { exit_code: -1, error: Some(error.message.clone()), ..RunOutcome::default() };
    Attempt { state, outcome }
}

fn succeeded(outcome: RunOutcome) -> Attempt {
    Attempt { state: RunState::Success, outcome }
}

async fn dispatch(
    scheduler: &Arc<Scheduler>,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    stop: &CancellationToken,
) -> Result<Attempt> {
    // These handle their own cancellation, so that no process or build is left behind.
    match &schedule.spec.target {
        ScheduleTarget::Command(target) => return command(scheduler, target, schedule, run, stop).await,
        ScheduleTarget::Template(target) => return template(scheduler, target, schedule, stop).await,
        _ => {}
    }
    tokio::select! {
        ended = call(scheduler, schedule, run) => ended,
        () = stop.cancelled() => Err(ended_early()),
    }
}

fn ended_early() -> Error {
    Error::conflict("the run was cancelled")
}

/// Runs every target but commands and rebuilds: such a call ends by itself.
async fn call(scheduler: &Arc<Scheduler>, schedule: &ScheduleRecord, run: &RunRecord) -> Result<Attempt> {
    let limit = timeout_of(schedule);
    match &schedule.spec.target {
        ScheduleTarget::Http(target) => {
            Ok(http_target::attempt(&scheduler.webhooks, target, schedule, run, limit).await)
        }
        ScheduleTarget::Command(_) | ScheduleTarget::Template(_) => {
            Err(Error::internal("a command or a rebuild is not a call"))
        }
        ScheduleTarget::Sandbox(target) => sandbox(scheduler, target, schedule).await,
        ScheduleTarget::App(target) => app_target::attempt(scheduler, target, schedule, run, limit).await,
        ScheduleTarget::Function(target) => {
            let attempt =
                scheduler.services.invoke_function(&schedule.workspace, target, run.attempt).await?;
            Ok(Attempt { outcome: bounded(attempt.outcome), ..attempt })
        }
        ScheduleTarget::Sql(target) => {
            let stdout = scheduler.services.run_sql(&schedule.workspace, target, limit).await?;
            Ok(succeeded(bounded(RunOutcome { stdout, ..RunOutcome::default() })))
        }
    }
}

async fn sandbox(
    scheduler: &Arc<Scheduler>,
    target: &SandboxTarget,
    schedule: &ScheduleRecord,
) -> Result<Attempt> {
    let sandbox = scheduler.machines.sandbox(&schedule.workspace, &target.sandbox_id);
    let record = match target.action {
        SandboxAction::Wake => sandbox.wake().await?,
        SandboxAction::Hibernate => sandbox.sleep().await?,
    };
    let stdout = format!("{} is {}", record.id, record.state.as_str());
    Ok(succeeded(RunOutcome { stdout, sandbox: Some(record.id), ..RunOutcome::default() }))
}

/// Rebuilds a template. If the run is cancelled or takes too long, the build is cancelled.
async fn template(
    scheduler: &Arc<Scheduler>,
    target: &TemplateTarget,
    schedule: &ScheduleRecord,
    stop: &CancellationToken,
) -> Result<Attempt> {
    let (services, workspace) = (&scheduler.services, &schedule.workspace);
    let limit = timeout_of(schedule);
    let build = services.start_rebuild(workspace, target).await?;
    let why = tokio::select! {
        ended = services.finish_rebuild(workspace, &build) => {
            let stdout = format!("build {build}: {}", ended?);
            return Ok(succeeded(bounded(RunOutcome { stdout, ..RunOutcome::default() })));
        }
        () = stop.cancelled() => ended_early(),
        () = tokio::time::sleep(limit) => {
            let message = format!("build {build} took more than {} s and was cancelled", limit.as_secs());
            Error::new(ErrorCode::ExecTimeout, message)
        }
    };
    services.cancel_rebuild(workspace, &build).await?;
    Err(why)
}

async fn command(
    scheduler: &Arc<Scheduler>,
    target: &CommandTarget,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    stop: &CancellationToken,
) -> Result<Attempt> {
    let mut exec = target.exec.clone();
    exec.timeout_seconds = Some(timeout_of(schedule).as_secs());
    exec.env.get_or_insert_default().extend(context(schedule, run));
    let (sandbox, result) = match &target.sandbox_id {
        Some(id) => (id.clone(), in_sandbox(scheduler, id, schedule, run, &exec, stop).await?),
        None => fresh(scheduler, target, schedule, exec, stop).await?,
    };
    let outcome = RunOutcome {
        exit_code: result.exit_code,
        stdout: result.stdout,
        stderr: result.stderr,
        truncated: result.truncated,
        error: (result.exit_code != 0).then(|| format!("the command exited with code {}", result.exit_code)),
        sandbox: Some(sandbox),
        ..RunOutcome::default()
    };
    let state = if result.exit_code == 0 { RunState::Success } else { RunState::Error };
    Ok(Attempt { state, outcome: bounded(outcome) })
}

/// Runs a command in an existing sandbox. If the run is cancelled, or a killed server left it, its process
/// is killed.
async fn in_sandbox(
    scheduler: &Arc<Scheduler>,
    id: &SandboxId,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    exec: &ExecRequest,
    stop: &CancellationToken,
) -> Result<ExecResult> {
    let sandbox = scheduler.machines.sandbox(&schedule.workspace, id);
    let tag = format!("schedule-run-{}", run.id);
    if run.attempt > 1 {
        sandbox.kill_tagged(&tag).await?;
    }
    let mut running = pin!(sandbox.exec(exec, &tag, RUN_OUTPUT_BYTES_MAX));
    tokio::select! {
        ended = &mut running => return ended,
        () = stop.cancelled() => {}
    }
    loop {
        sandbox.kill_tagged(&tag).await?;
        // A command that has just been started may not be listed yet, so kill again.
        if tokio::time::timeout(KILL_AGAIN, &mut running).await.is_ok() {
            return Err(ended_early());
        }
    }
}

async fn fresh(
    scheduler: &Arc<Scheduler>,
    target: &CommandTarget,
    schedule: &ScheduleRecord,
    exec: ExecRequest,
    stop: &CancellationToken,
) -> Result<(SandboxId, ExecResult)> {
    let request = RunRequest { template: target.template.clone(), exec };
    let workspace = schedule.workspace.clone();
    scheduler.machines.run(workspace, request, RUN_OUTPUT_BYTES_MAX, stop.clone()).await
}

/// Variables that describe the run to its target, so that the target can distinguish a repeated
/// attempt from a new run.
pub(crate) fn context(schedule: &ScheduleRecord, run: &RunRecord) -> BTreeMap<String, String> {
    [
        ("PANDASTACK_SCHEDULE_ID", schedule.id.to_string()),
        ("PANDASTACK_RUN_ID", run.id.to_string()),
        ("PANDASTACK_ATTEMPT", run.attempt.to_string()),
        ("PANDASTACK_SCHEDULED_FOR", run.scheduled_for.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Keeps the ends of both streams, because errors are printed last.
fn bounded(mut outcome: RunOutcome) -> RunOutcome {
    for stream in [&mut outcome.stdout, &mut outcome.stderr] {
        if stream.len() > RUN_OUTPUT_BYTES_MAX {
            let start = stream.ceil_char_boundary(stream.len() - RUN_OUTPUT_BYTES_MAX);
            stream.drain(..start);
            outcome.truncated = true;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_output_is_truncated_to_its_end() {
        let full = "x".repeat(RUN_OUTPUT_BYTES_MAX);
        let kept = bounded(RunOutcome { stdout: full.clone(), ..RunOutcome::default() });
        assert_eq!((kept.stdout.len(), kept.truncated), (RUN_OUTPUT_BYTES_MAX, false));
        let kept = bounded(RunOutcome { stderr: format!("é{full}"), ..RunOutcome::default() });
        assert_eq!((kept.stderr, kept.truncated), (full, true));
    }
}
