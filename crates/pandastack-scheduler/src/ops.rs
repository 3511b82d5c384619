//! Creates, changes, deletes and triggers schedules.

use std::sync::Arc;

use jiff::Timestamp;
use pandastack_store::clock::now;
use pandastack_store::schedules::{RunRecord, ScheduleRecord, ScheduleSpec};
use pandastack_types::api::{
    CreateSchedule, FunctionTarget, NextRuns, PatchSchedule, PreviewSchedule, ScheduleTarget, ScheduleTiming,
};
use pandastack_types::limits::SCHEDULE_PREVIEW_MAX;
use pandastack_types::{Error, ErrorCode, Result, ScheduleId, ScheduleRunId, WorkspaceId};

use crate::scheduler::Scheduler;
use crate::{dispatcher, spec};

/// Times of a preview that names no number.
const PREVIEW_DEFAULT: u32 = 5;
/// Attempts to make a change while the scheduler changes the same record.
const CHANGES_TRIED_MAX: usize = 16;

/// Creates a schedule.
pub(crate) async fn create(
    scheduler: &Scheduler,
    workspace: WorkspaceId,
    request: CreateSchedule,
) -> Result<ScheduleRecord> {
    spec::check_name(&request.name)?;
    let at = now();
    let timing = spec::read_timing(&request.timing, at)?;
    let next = timing.next_after(at);
    if request.timing.at.is_some() && next.is_none() {
        return Err(Error::bad_request("`at` is in the past; give a time in the future"));
    }
    let target = match (request.target, request.function_id.filter(|id| !id.is_empty())) {
        (Some(target), None) => target,
        (None, Some(function_id)) => ScheduleTarget::Function(FunctionTarget { function_id, input: None }),
        _ => return Err(Error::bad_request("nothing to run; set either `target` or `function_id`")),
    };
    let options = spec::overlay(request.options, spec::defaults(&target));
    spec::check_options(&scheduler.webhooks, &options)?;
    spec::check_target(scheduler, &workspace, &target).await?;
    let record = ScheduleRecord {
        id: ScheduleId::random(),
        workspace,
        name: request.name,
        spec: ScheduleSpec { timing: request.timing, anchor: at, target, options, paused_reason: None },
        paused: request.paused,
        cursor: at,
        next_run_at: next.filter(|_| !request.paused),
        revision: 0,
        failures: 0,
        last_run_at: None,
        alert: None,
        created_at: at,
        updated_at: at,
    };
    scheduler.store.insert_schedule(&record).await?;
    scheduler.activity.wake();
    Ok(record)
}

/// Changes a schedule.
pub(crate) async fn patch(
    scheduler: &Scheduler,
    workspace: &WorkspaceId,
    id: &ScheduleId,
    request: PatchSchedule,
) -> Result<ScheduleRecord> {
    if request == PatchSchedule::default() {
        return Err(Error::bad_request("nothing to change; set name, cron, target, paused or an option"));
    }
    if let Some(target) = &request.target {
        spec::check_target(scheduler, workspace, target).await?;
    }
    for _ in 0..CHANGES_TRIED_MAX {
        let mut record = scheduler.store.schedule(workspace, id).await?;
        change(scheduler, &mut record, request.clone())?;
        if scheduler.store.replace_schedule(&record).await? {
            scheduler.activity.wake();
            return Ok(scheduler.store.schedule(workspace, id).await?);
        }
    }
    Err(Error::conflict(format!("schedule `{id}` was changed by other requests; try again")))
}

fn change(scheduler: &Scheduler, record: &mut ScheduleRecord, request: PatchSchedule) -> Result<()> {
    let at = now();
    if let Some(name) = request.name {
        spec::check_name(&name)?;
        record.name = name;
    }
    if let Some(target) = request.target {
        record.spec.target = target;
    }
    record.spec.options = spec::overlay(request.options, record.spec.options.clone());
    spec::check_options(&scheduler.webhooks, &record.spec.options)?;
    let retimed = request.timing != ScheduleTiming::default();
    if retimed {
        record.spec.timing = merged(request.timing, &record.spec.timing);
        record.spec.anchor = at;
    }
    let resumed = record.paused && request.paused == Some(false);
    if resumed {
        (record.failures, record.spec.paused_reason) = (0, None);
    }
    record.paused = request.paused.unwrap_or(record.paused);
    let timing = spec::timing(&record.spec)?;
    if retimed || resumed {
        // Instants that passed under another timing or in a pause are not missed runs.
        record.cursor = record.cursor.max(at);
    }
    if retimed && record.spec.timing.at.is_some_and(|once| once <= at) {
        return Err(Error::bad_request("`at` is in the past; give a time in the future"));
    }
    record.next_run_at = timing.next_after(record.cursor).filter(|_| !record.paused);
    record.updated_at = at;
    Ok(())
}

/// A zone alone changes the zone; a new kind of timing replaces the old one.
fn merged(asked: ScheduleTiming, before: &ScheduleTiming) -> ScheduleTiming {
    let names_kind = asked.cron.is_some() || asked.every_seconds.is_some() || asked.at.is_some();
    let keeps_zone = before.cron.is_some() && (asked.cron.is_some() || !names_kind);
    let timezone = asked.timezone.or_else(|| before.timezone.clone().filter(|_| keeps_zone));
    match names_kind {
        true => ScheduleTiming { timezone, ..asked },
        false => ScheduleTiming { timezone, ..before.clone() },
    }
}

/// Deletes every schedule of a workspace, ending runs in progress.
pub async fn delete_all(scheduler: &Scheduler, workspace: &WorkspaceId) -> Result<()> {
    for schedule in scheduler.store.schedules(workspace).await? {
        match delete(scheduler, workspace, &schedule.id).await {
            Err(error) if error.code != ErrorCode::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Deletes a schedule and its runs, ending those in progress.
pub(crate) async fn delete(scheduler: &Scheduler, workspace: &WorkspaceId, id: &ScheduleId) -> Result<()> {
    for run in scheduler.store.delete_schedule(workspace, id).await? {
        scheduler.activity.end(&run);
    }
    Ok(())
}

/// Runs a schedule now, regardless of its times; with `wait`, returns when that run has ended.
pub(crate) async fn trigger(
    scheduler: &Arc<Scheduler>,
    workspace: &WorkspaceId,
    id: &ScheduleId,
    wait: bool,
) -> Result<(ScheduleRecord, RunRecord)> {
    let schedule = scheduler.store.schedule(workspace, id).await?;
    let run = dispatcher::manual_run(&schedule, now());
    let ended = scheduler.activity.wait_for_end(&run.id);
    scheduler.run_store.insert_run(&run).await?;
    scheduler.activity.wake();
    if wait {
        tokio::select! {
            // An error means that the schedule was deleted; the read below reports that.
            _ = ended => {}
            () = scheduler.background.shutdown.cancelled() => {}
        }
    }
    let run = scheduler.run_store.run(workspace, id, &run.id).await?;
    Ok((schedule, run))
}

/// Cancels a run.
pub(crate) async fn cancel(
    scheduler: &Scheduler,
    workspace: &WorkspaceId,
    id: &ScheduleId,
    run: &ScheduleRunId,
) -> Result<RunRecord> {
    scheduler.run_store.run(workspace, id, run).await?;
    if !scheduler.run_store.cancel_run(workspace, run, now()).await? {
        return Err(Error::conflict(format!("run `{run}` has already ended")));
    }
    scheduler.activity.end(run);
    scheduler.activity.wake();
    Ok(scheduler.run_store.run(workspace, id, run).await?)
}

/// The next times of a timing without a schedule.
pub(crate) fn preview(request: &PreviewSchedule) -> Result<NextRuns> {
    let at = now();
    next_runs(&request.timing, at, request.after.unwrap_or(at), request.count)
}

/// The next times of a timing.
pub(crate) fn next_runs(
    timing: &ScheduleTiming,
    anchor: Timestamp,
    after: Timestamp,
    count: Option<u32>,
) -> Result<NextRuns> {
    let count = count.unwrap_or(PREVIEW_DEFAULT);
    if !(1..=SCHEDULE_PREVIEW_MAX).contains(&count) {
        return Err(Error::bad_request(format!("`count` must be 1 to {SCHEDULE_PREVIEW_MAX}")));
    }
    let read = spec::read_timing(timing, anchor)?;
    let items: Vec<_> = read.instants_after(after).take(count as usize).collect();
    let zone = read.zone();
    let shown = |at: &Timestamp| at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    Ok(NextRuns { local: items.iter().map(shown).collect(), items, timezone: spec::zone_name(timing) })
}
