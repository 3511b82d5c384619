//! Schedules.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::limits::SCHEDULES_PER_WORKSPACE_MAX;
use pandastack_types::{ScheduleId, ScheduleRunId, WorkspaceId};
use sqlx::AnyConnection;

use super::quotas::admit_any;
use super::rows::{from_json, id, time, times, unsigned};
use super::schedule_runs::{insert_run, run_by_id};
use super::seal::sealed_row;
use super::sealed_columns::SCHEDULES;
use super::{SqlStore, Write};
use crate::schedules::{DueRuns, PendingAlert, RunRecord, RunState, ScheduleRecord, ScheduleStore};
use crate::{Durability, Result, StoreError};

macro_rules! select {
    ($($rest:expr),+) => {
        concat!(
            "SELECT id, workspace_id, name, spec, paused, cursor_us, next_run_at_us, revision, failures, last_run_at_us, \
             alert_run_id, alert_attempts, alert_at_us, created_at_us, updated_at_us FROM schedules ",
            $($rest),+
        )
    };
}

#[derive(sqlx::FromRow)]
pub(super) struct ScheduleRow {
    id: String,
    workspace_id: String,
    name: String,
    spec: String,
    paused: i64,
    cursor_us: i64,
    next_run_at_us: Option<i64>,
    revision: i64,
    failures: i64,
    last_run_at_us: Option<i64>,
    alert_run_id: Option<String>,
    alert_attempts: i64,
    alert_at_us: Option<i64>,
    created_at_us: i64,
    updated_at_us: i64,
}

sealed_row!(ScheduleRow, SCHEDULES);

impl TryFrom<ScheduleRow> for ScheduleRecord {
    type Error = StoreError;
    fn try_from(row: ScheduleRow) -> Result<Self> {
        let alert = match (row.alert_run_id, row.alert_at_us) {
            (Some(run), Some(at)) => {
                Some(PendingAlert { run: id(run)?, attempts: small(row.alert_attempts), at: time(at)? })
            }
            _ => None,
        };
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            name: row.name,
            spec: from_json("schedule", &row.spec)?,
            paused: row.paused != 0,
            cursor: time(row.cursor_us)?,
            next_run_at: times(row.next_run_at_us)?,
            revision: row.revision,
            failures: small(row.failures),
            last_run_at: times(row.last_run_at_us)?,
            alert,
            created_at: time(row.created_at_us)?,
            updated_at: time(row.updated_at_us)?,
        })
    }
}

/// Counters that this code wrote as `u32`.
pub(super) fn small(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A schedule for changing it, locked until the end of the write.
pub(super) async fn schedule_to_change(
    write: &mut Write,
    lock: &str,
    id: &str,
) -> Result<Option<ScheduleRecord>> {
    let row: Option<ScheduleRow> =
        sqlx::query_as(sqlx::AssertSqlSafe(format!("{}{lock}", select!("WHERE id = $1"))))
            .bind(id)
            .fetch_optional(write.conn())
            .await?;
    row.map(|row| write.sealer.record(row)).transpose()
}

/// Writes everything of a schedule that changes, and counts the change; whether it was at that revision.
pub(super) async fn write_schedule(write: &mut Write, record: &ScheduleRecord) -> Result<bool> {
    let alert = record.alert.as_ref();
    let done = sqlx::query(
        "UPDATE schedules SET name = $1, spec = $2, paused = $3, cursor_us = $4, next_run_at_us = $5, failures = $6, \
         last_run_at_us = $7, alert_run_id = $8, alert_attempts = $9, alert_at_us = $10, updated_at_us = $11, \
         revision = revision + 1 WHERE id = $12 AND revision = $13",
    )
    .bind(&record.name)
    .bind(spec(write, record)?)
    .bind(i64::from(record.paused))
    .bind(record.cursor.as_microsecond())
    .bind(record.next_run_at.map(Timestamp::as_microsecond))
    .bind(i64::from(record.failures))
    .bind(record.last_run_at.map(Timestamp::as_microsecond))
    .bind(alert.map(|alert| alert.run.as_str()))
    .bind(alert.map_or(0, |alert| i64::from(alert.attempts)))
    .bind(alert.map(|alert| alert.at.as_microsecond()))
    .bind(record.updated_at.as_microsecond())
    .bind(record.id.as_str())
    .bind(record.revision)
    .execute(write.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

fn spec(write: &Write, record: &ScheduleRecord) -> Result<String> {
    write.sealer.to_json(&SCHEDULES, record.workspace.as_str(), record.id.as_str(), &record.spec)
}

async fn insert(write: &mut Write, record: &ScheduleRecord) -> Result<()> {
    sqlx::query(
        "INSERT INTO schedules (id, workspace_id, name, spec, paused, cursor_us, next_run_at_us, revision, failures, \
         alert_attempts, created_at_us, updated_at_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, 0, $9, $10)",
    )
    .bind(record.id.as_str())
    .bind(record.workspace.as_str())
    .bind(&record.name)
    .bind(spec(write, record)?)
    .bind(i64::from(record.paused))
    .bind(record.cursor.as_microsecond())
    .bind(record.next_run_at.map(Timestamp::as_microsecond))
    .bind(record.revision)
    .bind(record.created_at.as_microsecond())
    .bind(record.updated_at.as_microsecond())
    .execute(write.conn())
    .await?;
    Ok(())
}

/// Forgets an alert.
async fn settle(conn: &mut AnyConnection, id: &ScheduleId, run: &ScheduleRunId) -> Result<()> {
    sqlx::query(
        "UPDATE schedules SET alert_run_id = NULL, alert_attempts = 0, alert_at_us = NULL \
         WHERE id = $1 AND alert_run_id = $2",
    )
    .bind(id.as_str())
    .bind(run.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) fn absent(id: &ScheduleId) -> StoreError {
    StoreError::NotFound { what: "schedule", id: id.to_string() }
}

#[async_trait]
impl ScheduleStore for SqlStore {
    async fn insert_schedule(&self, schedule: &ScheduleRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&schedule.workspace).await?;
        admit_any(write.conn(), &schedule.workspace).await?;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM schedules WHERE workspace_id = $1")
            .bind(schedule.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= SCHEDULES_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "schedules", limit: SCHEDULES_PER_WORKSPACE_MAX });
        }
        insert(&mut write, schedule).await?;
        write.commit().await
    }

    async fn schedule(&self, workspace: &WorkspaceId, id: &ScheduleId) -> Result<ScheduleRecord> {
        let row: Option<ScheduleRow> = sqlx::query_as(select!("WHERE id = $1 AND workspace_id = $2"))
            .bind(id.as_str())
            .bind(workspace.as_str())
            .fetch_optional(&self.readers)
            .await?;
        self.sealer.record(row.ok_or_else(|| absent(id))?)
    }

    async fn schedules(&self, workspace: &WorkspaceId) -> Result<Vec<ScheduleRecord>> {
        let rows: Vec<ScheduleRow> =
            sqlx::query_as(select!("WHERE workspace_id = $1 ORDER BY created_at_us, id"))
                .bind(workspace.as_str())
                .fetch_all(&self.readers)
                .await?;
        self.sealer.records(rows)
    }

    async fn schedules_pending(&self) -> Result<Vec<ScheduleRecord>> {
        let rows: Vec<ScheduleRow> =
            sqlx::query_as(select!("WHERE next_run_at_us IS NOT NULL")).fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }

    async fn replace_schedule(&self, record: &ScheduleRecord) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        if !write_schedule(&mut write, record).await? {
            return Ok(false);
        }
        sqlx::query("UPDATE schedule_runs SET state = 'queued' WHERE schedule_id = $1 AND state = 'waiting'")
            .bind(record.id.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(true)
    }

    async fn delete_schedule(&self, workspace: &WorkspaceId, id: &ScheduleId) -> Result<Vec<ScheduleRunId>> {
        let mut write = self.write(Durability::Power).await?;
        let lock = write.lock_clause();
        let record = schedule_to_change(&mut write, lock, id.as_str()).await?;
        if record.is_none_or(|record| record.workspace != *workspace) {
            return Err(absent(id));
        }
        let in_progress: Vec<String> =
            sqlx::query_scalar("SELECT id FROM schedule_runs WHERE schedule_id = $1 AND ended_at_us IS NULL")
                .bind(id.as_str())
                .fetch_all(write.conn())
                .await?;
        for statement in
            ["DELETE FROM schedule_runs WHERE schedule_id = $1", "DELETE FROM schedules WHERE id = $1"]
        {
            sqlx::query(statement).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await?;
        in_progress.into_iter().map(super::rows::id).collect()
    }

    async fn schedules_due(&self, at: Timestamp, limit: u32) -> Result<Vec<ScheduleRecord>> {
        let rows: Vec<ScheduleRow> = sqlx::query_as(select!(
            "WHERE next_run_at_us <= $1",
            in_open_workspace!(),
            " ORDER BY next_run_at_us LIMIT $2"
        ))
        .bind(at.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn fire(&self, firings: &[DueRuns]) -> Result<u64> {
        // On disk before anything runs, so that a run that started is not decided again after a
        // power loss.
        let mut write = self.write(Durability::Power).await?;
        let mut accepted = 0;
        for firing in firings {
            let began = firing.runs.iter().filter(|run| run.state != RunState::Skipped);
            let last = began.map(|run| run.scheduled_for.as_microsecond()).max();
            let done = sqlx::query(
                "UPDATE schedules SET cursor_us = $1, next_run_at_us = $2, last_run_at_us = COALESCE($3, last_run_at_us), \
                 revision = revision + 1 WHERE id = $4 AND revision = $5",
            )
            .bind(firing.cursor.as_microsecond())
            .bind(firing.next_run_at.map(Timestamp::as_microsecond))
            .bind(last)
            .bind(firing.schedule.as_str())
            .bind(firing.revision)
            .execute(write.conn())
            .await?;
            if done.rows_affected() == 0 {
                continue;
            }
            accepted += 1;
            for run in &firing.runs {
                insert_run(write.conn(), run).await?;
            }
        }
        write.commit().await?;
        Ok(accepted)
    }

    async fn next_schedule_work(&self, with_runs: bool) -> Result<Option<Timestamp>> {
        let statements = [
            concat!(
                "SELECT MIN(next_run_at_us) FROM schedules WHERE next_run_at_us IS NOT NULL",
                in_open_workspace!()
            ),
            "SELECT MIN(alert_at_us) FROM schedules WHERE alert_at_us IS NOT NULL",
            concat!(
                "SELECT MIN(not_before_us) FROM schedule_runs WHERE state = 'queued'",
                in_open_workspace!()
            ),
        ];
        let count = if with_runs { statements.len() } else { statements.len() - 1 };
        let mut first: Option<i64> = None;
        for statement in statements.into_iter().take(count) {
            let at: Option<i64> = sqlx::query_scalar(statement).fetch_one(&self.readers).await?;
            first = first.into_iter().chain(at).min();
        }
        times(first)
    }

    async fn claim_alerts(
        &self,
        at: Timestamp,
        retry_at: Timestamp,
        limit: u32,
    ) -> Result<Vec<(ScheduleRecord, RunRecord)>> {
        let mut write = self.write(Durability::Process).await?;
        let rows: Vec<ScheduleRow> =
            sqlx::query_as(select!("WHERE alert_at_us <= $1 ORDER BY alert_at_us LIMIT $2"))
                .bind(at.as_microsecond())
                .bind(i64::from(limit))
                .fetch_all(write.conn())
                .await?;
        let mut claimed = Vec::new();
        for schedule in self.sealer.records::<_, ScheduleRecord>(rows)? {
            let Some(alert) = schedule.alert.clone() else { continue };
            let done = sqlx::query(
                "UPDATE schedules SET alert_attempts = alert_attempts + 1, alert_at_us = $1 \
                 WHERE id = $2 AND alert_run_id = $3 AND alert_attempts = $4",
            )
            .bind(retry_at.as_microsecond())
            .bind(schedule.id.as_str())
            .bind(alert.run.as_str())
            .bind(i64::from(alert.attempts))
            .execute(write.conn())
            .await?;
            match run_by_id(write.conn(), "", alert.run.as_str()).await? {
                Some(run) if done.rows_affected() == 1 => claimed.push((schedule, run)),
                Some(_) => {}
                // Too old to alert about: its run was removed.
                None => settle(write.conn(), &schedule.id, &alert.run).await?,
            }
        }
        write.commit().await?;
        Ok(claimed)
    }

    async fn settle_alert(&self, id: &ScheduleId, run: &ScheduleRunId) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        settle(write.conn(), id, run).await?;
        write.commit().await
    }
}
