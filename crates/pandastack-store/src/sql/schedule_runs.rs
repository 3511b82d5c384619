//! Runs of schedules.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_schedule::{Admission, admit};
use pandastack_types::api::{Overlap, RunOrigin};
use pandastack_types::limits::RUN_INTERRUPTIONS_MAX;
use pandastack_types::{ScheduleId, ScheduleRunId, WorkspaceId};
use sqlx::AnyConnection;

use super::rows::{from_json, id, records, time, times, to_json, unsigned};
use super::schedules::{absent, schedule_to_change, small, write_schedule};
use super::{SqlStore, Write};
use crate::schedules::{ClaimedRuns, RunEnd, RunRecord, RunState, RunStore, ScheduleRecord};
use crate::{Durability, Result, StoreError};

macro_rules! select {
    ($($rest:expr),+) => {
        concat!(
            "SELECT id, schedule_id, workspace_id, origin, scheduled_for_us, state, not_before_us, attempt, interruptions, \
             is_catch_up, created_at_us, started_at_us, ended_at_us, outcome FROM schedule_runs ",
            $($rest),+
        )
    };
}

#[derive(sqlx::FromRow)]
struct RunRow {
    id: String,
    schedule_id: String,
    workspace_id: String,
    origin: String,
    scheduled_for_us: i64,
    state: String,
    not_before_us: i64,
    attempt: i64,
    interruptions: i64,
    is_catch_up: i64,
    created_at_us: i64,
    started_at_us: Option<i64>,
    ended_at_us: Option<i64>,
    outcome: String,
}

impl TryFrom<RunRow> for RunRecord {
    type Error = StoreError;
    fn try_from(row: RunRow) -> Result<Self> {
        let state = RunState::parse(&row.state).ok_or_else(|| StoreError::Corrupt {
            what: "run state",
            source: format!("`{}` is not a state", row.state).into(),
        })?;
        Ok(Self {
            id: id(row.id)?,
            schedule: id(row.schedule_id)?,
            workspace: id(row.workspace_id)?,
            origin: if row.origin == MANUAL { RunOrigin::Manual } else { RunOrigin::Schedule },
            scheduled_for: time(row.scheduled_for_us)?,
            state,
            not_before: time(row.not_before_us)?,
            attempt: small(row.attempt),
            interruptions: small(row.interruptions),
            is_catch_up: row.is_catch_up != 0,
            created_at: time(row.created_at_us)?,
            started_at: times(row.started_at_us)?,
            ended_at: times(row.ended_at_us)?,
            outcome: from_json("run outcome", &row.outcome)?,
        })
    }
}

const MANUAL: &str = "manual";
const SCHEDULED: &str = "schedule";

/// Adds a run, unless its instant has one.
pub(super) async fn insert_run(conn: &mut AnyConnection, run: &RunRecord) -> Result<()> {
    let origin = if run.origin == RunOrigin::Manual { MANUAL } else { SCHEDULED };
    sqlx::query(
        "INSERT INTO schedule_runs (id, schedule_id, workspace_id, origin, scheduled_for_us, state, not_before_us, attempt, \
         interruptions, is_catch_up, created_at_us, ended_at_us, outcome) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, $8, $9, $10, $11) ON CONFLICT DO NOTHING",
    )
    .bind(run.id.as_str())
    .bind(run.schedule.as_str())
    .bind(run.workspace.as_str())
    .bind(origin)
    .bind(run.scheduled_for.as_microsecond())
    .bind(run.state.as_str())
    .bind(run.not_before.as_microsecond())
    .bind(i64::from(run.is_catch_up))
    .bind(run.created_at.as_microsecond())
    .bind(run.ended_at.map(Timestamp::as_microsecond))
    .bind(to_json("run outcome", &run.outcome)?)
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn run_by_id(conn: &mut AnyConnection, lock: &str, id: &str) -> Result<Option<RunRecord>> {
    let row: Option<RunRow> =
        sqlx::query_as(sqlx::AssertSqlSafe(format!("{}{lock}", select!("WHERE id = $1"))))
            .bind(id)
            .fetch_optional(conn)
            .await?;
    row.map(RunRecord::try_from).transpose()
}

/// Writes where a run stands.
async fn write_run(conn: &mut AnyConnection, run: &RunRecord, instance: Option<&str>) -> Result<()> {
    sqlx::query(
        "UPDATE schedule_runs SET state = $1, not_before_us = $2, attempt = $3, interruptions = $4, started_at_us = $5, \
         ended_at_us = $6, outcome = $7, instance = $8 WHERE id = $9",
    )
    .bind(run.state.as_str())
    .bind(run.not_before.as_microsecond())
    .bind(i64::from(run.attempt))
    .bind(i64::from(run.interruptions))
    .bind(run.started_at.map(Timestamp::as_microsecond))
    .bind(run.ended_at.map(Timestamp::as_microsecond))
    .bind(to_json("run outcome", &run.outcome)?)
    .bind(instance)
    .bind(run.id.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// The other runs of a schedule: those in progress, and the number of waiting ones.
async fn other_runs(conn: &mut AnyConnection, run: &RunRecord) -> Result<(Vec<RunRecord>, u64)> {
    let in_progress: Vec<RunRow> = sqlx::query_as(select!(
        "WHERE schedule_id = $1 AND id <> $2 AND ended_at_us IS NULL AND (state = 'running' OR (state = 'queued' AND attempt > 0))"
    ))
    .bind(run.schedule.as_str())
    .bind(run.id.as_str())
    .fetch_all(&mut *conn)
    .await?;
    let waiting: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM schedule_runs WHERE schedule_id = $1 AND ended_at_us IS NULL AND state = 'waiting'",
    )
    .bind(run.schedule.as_str())
    .fetch_one(conn)
    .await?;
    Ok((records(in_progress)?, unsigned(waiting)))
}

/// Makes the run of a schedule that has waited longest due again.
async fn wake_waiting(conn: &mut AnyConnection, schedule: &ScheduleId) -> Result<()> {
    sqlx::query(
        "UPDATE schedule_runs SET state = 'queued' WHERE id = (SELECT id FROM schedule_runs \
         WHERE schedule_id = $1 AND ended_at_us IS NULL AND state = 'waiting' ORDER BY scheduled_for_us, id LIMIT 1)",
    )
    .bind(schedule.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends a run without a result.
fn end_unrun(run: &mut RunRecord, state: RunState, at: Timestamp, why: &str) {
    (run.state, run.ended_at) = (state, Some(at));
    run.outcome.error = Some(why.to_owned());
}

/// Starts one run, or decides its other outcome.
async fn claim(
    write: &mut Write,
    schedule: ScheduleRecord,
    mut run: RunRecord,
    instance: &str,
    at: Timestamp,
    claimed: &mut ClaimedRuns,
) -> Result<()> {
    let (in_progress, waiting) = other_runs(write.conn(), &run).await?;
    // A run that has already started keeps its slot.
    let count = if run.attempt > 0 { 0 } else { in_progress.len() as u64 };
    let overlap = schedule.spec.options.overlap.unwrap_or(Overlap::Skip);
    match admit(overlap, count, waiting, run.is_catch_up) {
        Admission::Wait => {
            run.state = RunState::Waiting;
            return write_run(write.conn(), &run, None).await;
        }
        Admission::Skip => end_unrun(&mut run, RunState::Skipped, at, "an earlier run was still in progress"),
        Admission::Full => end_unrun(&mut run, RunState::Skipped, at, "too many earlier runs were waiting"),
        Admission::Replace => {
            for mut earlier in in_progress {
                end_unrun(&mut earlier, RunState::Cancelled, at, "replaced by a later run");
                write_run(write.conn(), &earlier, None).await?;
                claimed.ended.push(earlier.id);
            }
            begin(&mut run, at);
        }
        Admission::Start => begin(&mut run, at),
    }
    if run.state == RunState::Running {
        write_run(write.conn(), &run, Some(instance)).await?;
        claimed.started.push((schedule, run));
    } else {
        write_run(write.conn(), &run, None).await?;
        claimed.ended.push(run.id);
    }
    Ok(())
}

fn begin(run: &mut RunRecord, at: Timestamp) {
    (run.state, run.started_at) = (RunState::Running, Some(at));
    run.attempt = run.attempt.saturating_add(1);
}

/// Notes in its schedule how a scheduled run ended.
async fn note_end(write: &mut Write, lock: &str, run: &RunRecord, at: Timestamp) -> Result<()> {
    if run.origin == RunOrigin::Schedule
        && let Some(mut schedule) = schedule_to_change(write, lock, run.schedule.as_str()).await?
    {
        schedule.note_end(&run.id, run.state, at);
        write_schedule(write, &schedule).await?;
    }
    wake_waiting(write.conn(), &run.schedule).await
}

#[async_trait]
impl RunStore for SqlStore {
    async fn insert_run(&self, run: &RunRecord) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        let lock = write.lock_clause();
        if schedule_to_change(&mut write, lock, run.schedule.as_str()).await?.is_none() {
            return Err(absent(&run.schedule));
        }
        insert_run(write.conn(), run).await?;
        write.commit().await
    }

    async fn claim_runs(&self, instance: &str, at: Timestamp, limit: u32) -> Result<ClaimedRuns> {
        let mut claimed = ClaimedRuns::default();
        let mut write = self.write(Durability::Process).await?;
        let lock = write.lock_clause();
        let ready: Vec<RunRow> = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "{}{lock}",
            select!(
                "WHERE state = 'queued' AND not_before_us <= $1",
                in_open_workspace!(),
                " ORDER BY not_before_us, scheduled_for_us LIMIT $2"
            )
        )))
        .bind(at.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(write.conn())
        .await?;
        for run in records::<_, RunRecord>(ready)? {
            let schedule = schedule_to_change(&mut write, lock, run.schedule.as_str()).await?;
            // An earlier run of this loop may have replaced this one, which is then no longer
            // queued.
            let run = run_by_id(write.conn(), "", run.id.as_str()).await?;
            if let (Some(schedule), Some(run)) = (schedule, run)
                && run.state == RunState::Queued
            {
                claim(&mut write, schedule, run, instance, at, &mut claimed).await?;
            }
        }
        write.commit().await?;
        Ok(claimed)
    }

    async fn end_run(&self, end: &RunEnd) -> Result<bool> {
        let mut write = self.write(Durability::Process).await?;
        let lock = write.lock_clause();
        let mine: Option<String> = sqlx::query_scalar(
            "SELECT id FROM schedule_runs WHERE id = $1 AND state = 'running' AND instance = $2",
        )
        .bind(end.run.as_str())
        .bind(&end.instance)
        .fetch_optional(write.conn())
        .await?;
        let Some(mut run) = run_by_id(write.conn(), lock, end.run.as_str()).await? else { return Ok(false) };
        if mine.is_none() || run.state != RunState::Running {
            return Ok(false);
        }
        let missed = run.outcome.missed;
        run.outcome = end.outcome.clone();
        run.outcome.missed = missed;
        match end.retry_at {
            Some(retry_at) => {
                (run.state, run.not_before) = (RunState::Queued, retry_at);
                write_run(write.conn(), &run, None).await?;
            }
            None => {
                (run.state, run.ended_at) = (end.state, Some(end.at));
                write_run(write.conn(), &run, None).await?;
                note_end(&mut write, lock, &run, end.at).await?;
            }
        }
        write.commit().await?;
        Ok(true)
    }

    async fn cancel_run(&self, workspace: &WorkspaceId, id: &ScheduleRunId, at: Timestamp) -> Result<bool> {
        let mut write = self.write(Durability::Process).await?;
        let lock = write.lock_clause();
        let run = run_by_id(write.conn(), lock, id.as_str()).await?;
        let Some(mut run) = run.filter(|run| run.workspace == *workspace && run.ended_at.is_none()) else {
            return Ok(false);
        };
        end_unrun(&mut run, RunState::Cancelled, at, "cancelled by a client");
        write_run(write.conn(), &run, None).await?;
        wake_waiting(write.conn(), &run.schedule).await?;
        write.commit().await?;
        Ok(true)
    }

    async fn take_over_runs(&self, instance: &str, at: Timestamp) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let lock = write.lock_clause();
        let rows: Vec<RunRow> = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "{}{lock}",
            select!(
                "WHERE ended_at_us IS NULL AND ((state = 'running' AND instance <> $1) OR \
                 (state IN ('queued', 'waiting') AND origin = 'manual'))"
            )
        )))
        .bind(instance)
        .fetch_all(write.conn())
        .await?;
        let runs: Vec<RunRecord> = records(rows)?;
        for mut run in runs.clone() {
            run.interruptions = run.interruptions.saturating_add(1);
            if run.origin == RunOrigin::Schedule && run.interruptions <= RUN_INTERRUPTIONS_MAX {
                (run.state, run.not_before) = (RunState::Queued, at);
                write_run(write.conn(), &run, None).await?;
                continue;
            }
            run.outcome.exit_code = -1;
            end_unrun(&mut run, RunState::Error, at, "the server restarted during the run");
            write_run(write.conn(), &run, None).await?;
            note_end(&mut write, lock, &run, at).await?;
        }
        write.commit().await?;
        Ok(runs.len() as u64)
    }

    async fn run(
        &self,
        workspace: &WorkspaceId,
        schedule: &ScheduleId,
        id: &ScheduleRunId,
    ) -> Result<RunRecord> {
        let row: Option<RunRow> =
            sqlx::query_as(select!("WHERE id = $1 AND schedule_id = $2 AND workspace_id = $3"))
                .bind(id.as_str())
                .bind(schedule.as_str())
                .bind(workspace.as_str())
                .fetch_optional(&self.readers)
                .await?;
        row.ok_or_else(|| StoreError::NotFound { what: "run", id: id.to_string() })?.try_into()
    }

    async fn runs(
        &self,
        workspace: &WorkspaceId,
        schedule: &ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<RunRecord>> {
        let rows: Vec<RunRow> = sqlx::query_as(select!(
            "WHERE schedule_id = $1 AND workspace_id = $2 AND created_at_us < $3 \
             ORDER BY created_at_us DESC, scheduled_for_us DESC LIMIT $4"
        ))
        .bind(schedule.as_str())
        .bind(workspace.as_str())
        .bind(before.map_or(i64::MAX, Timestamp::as_microsecond))
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    async fn prune_runs(&self, before: Timestamp, per_schedule: u32) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let done = sqlx::query(
            "DELETE FROM schedule_runs WHERE ended_at_us < $1 OR id IN (SELECT id FROM (SELECT id, \
             ROW_NUMBER() OVER (PARTITION BY schedule_id ORDER BY created_at_us DESC, id) AS place \
             FROM schedule_runs WHERE ended_at_us IS NOT NULL) AS ranked WHERE place > $2)",
        )
        .bind(before.as_microsecond())
        .bind(i64::from(per_schedule))
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(done.rows_affected())
    }
}
