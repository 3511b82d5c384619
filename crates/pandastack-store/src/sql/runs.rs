//! Calls of functions: their results, and the queue of pending ones.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{FunctionRunStatus, UsageKind};
use pandastack_types::limits::QUEUED_RUNS_PER_WORKSPACE_MAX;
use pandastack_types::{FunctionId, RunId, WorkspaceId};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::SqlStore;
use super::quotas::admit_any;
use super::rows::{from_json, id, records, signed, times, to_json, unsigned};
use crate::functions::{FunctionRunStore, RunFigures, RunRecord, RunSelect};
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct RunRow {
    workspace_id: String,
    queued: i64,
    due_at_us: Option<i64>,
    event: Option<Vec<u8>>,
    spec: String,
}

impl TryFrom<RunRow> for RunRecord {
    type Error = StoreError;
    fn try_from(row: RunRow) -> Result<Self> {
        Ok(Self {
            workspace: id(row.workspace_id)?,
            queued: row.queued != 0,
            due_at: times(row.due_at_us)?,
            event: row.event,
            used_ms: None,
            run: from_json("run", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
struct FigureRow {
    duration_us: i64,
    billed_ms: i64,
    cold: i64,
    state: String,
}

/// Calls of type `Event` that ended badly keep their event, and only they do.
const DEAD_LETTERS: &str =
    " AND ended_at_us IS NOT NULL AND event IS NOT NULL AND state IN ('error', 'timeout')";

const RUN: &str = "SELECT workspace_id, queued, due_at_us, event, spec FROM function_runs";

async fn put(conn: &mut AnyConnection, record: &RunRecord) -> Result<()> {
    let run = &record.run;
    // Deleting a function deletes its calls; a call that ends after that is not stored.
    sqlx::query(
        "INSERT INTO function_runs (id, function_id, workspace_id, state, queued, due_at_us, created_at_us, ended_at_us, \
         duration_us, billed_ms, cold, event, spec) \
         SELECT $1, functions.id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13 FROM functions WHERE functions.id = $2 \
         ON CONFLICT (id) DO UPDATE SET state = excluded.state, queued = excluded.queued, due_at_us = excluded.due_at_us, \
         ended_at_us = excluded.ended_at_us, duration_us = excluded.duration_us, billed_ms = excluded.billed_ms, \
         cold = excluded.cold, event = excluded.event, spec = excluded.spec",
    )
    .bind(run.id.as_str())
    .bind(run.function_id.as_str())
    .bind(record.workspace.as_str())
    .bind(run.status.as_str())
    .bind(i64::from(record.queued))
    .bind(record.due_at.map(Timestamp::as_microsecond))
    .bind(run.started_at.as_microsecond())
    .bind(run.ended_at.map(Timestamp::as_microsecond))
    .bind(duration_us(run.duration_ms))
    .bind(signed(run.billed_ms))
    .bind(i64::from(run.cold))
    .bind(record.event.as_deref())
    .bind(to_json("run", run)?)
    .execute(conn)
    .await?;
    Ok(())
}

/// One usage event for each function and machine of a batch.
async fn put_usage(conn: &mut AnyConnection, batch: &[RunRecord]) -> Result<()> {
    let mut sums = BTreeMap::<_, (i64, i64, i64)>::new();
    for record in batch {
        let (Some(used_ms), Some(sandbox)) = (record.used_ms, &record.run.sandbox_id) else { continue };
        let key = (record.workspace.as_str(), record.run.function_id.as_str(), sandbox.as_str());
        let (calls, billed_ms, at) = sums.entry(key).or_default();
        *calls += 1;
        *billed_ms = billed_ms.saturating_add(signed(used_ms));
        *at = record.run.ended_at.unwrap_or(record.run.started_at).as_microsecond().max(*at);
    }
    for ((workspace, function, sandbox), (calls, billed_ms, at_us)) in sums {
        sqlx::query(
            "INSERT INTO usage_events (workspace_id, sandbox_id, function_id, at_us, calls, billed_ms, creates, cpu_ms, \
             memory_mb_seconds, asleep_seconds, sent_bytes, received_bytes, kind) \
             VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, 0, 0, $7)",
        )
        .bind(workspace)
        .bind(sandbox)
        .bind(function)
        .bind(at_us)
        .bind(calls)
        .bind(billed_ms)
        .bind(UsageKind::Function.as_str())
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// `AND function_id NOT IN (...)`, with parameters from `$first` on.
fn without(except: &[FunctionId], first: usize) -> String {
    if except.is_empty() {
        return String::new();
    }
    let places: Vec<String> = (first..first + except.len()).map(|place| format!("${place}")).collect();
    format!(" AND function_id NOT IN ({})", places.join(", "))
}

#[expect(clippy::cast_possible_truncation, reason = "a time within hours, and as a float it saturates")]
fn duration_us(ms: f64) -> i64 {
    (ms * 1000.0) as i64
}

#[async_trait]
impl FunctionRunStore for SqlStore {
    async fn put_runs(&self, batch: &[RunRecord]) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        for record in batch {
            put(write.conn(), record).await?;
        }
        put_usage(write.conn(), batch).await?;
        write.commit().await
    }

    async fn enqueue_run(&self, record: &RunRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&record.workspace).await?;
        admit_any(write.conn(), &record.workspace).await?;
        let count: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM function_runs WHERE queued = 1 AND workspace_id = $1")
                .bind(record.workspace.as_str())
                .fetch_one(write.conn())
                .await?;
        if unsigned(count) >= QUEUED_RUNS_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "queued calls", limit: QUEUED_RUNS_PER_WORKSPACE_MAX });
        }
        put(write.conn(), record).await?;
        write.commit().await
    }

    async fn function_run(
        &self,
        workspace: &WorkspaceId,
        function: &FunctionId,
        id: &RunId,
    ) -> Result<RunRecord> {
        let by_id = AssertSqlSafe(format!("{RUN} WHERE id = $1 AND function_id = $2 AND workspace_id = $3"));
        let row: Option<RunRow> = sqlx::query_as(by_id)
            .bind(id.as_str())
            .bind(function.as_str())
            .bind(workspace.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.ok_or_else(|| StoreError::NotFound { what: "run", id: id.to_string() })?.try_into()
    }

    async fn function_runs(&self, function: &FunctionId, select: RunSelect) -> Result<Vec<RunRecord>> {
        let which = if select.dead_letters { DEAD_LETTERS } else { "" };
        let newest = format!("{RUN} WHERE function_id = $1{which} ORDER BY created_at_us DESC, id LIMIT $2");
        let rows: Vec<RunRow> = sqlx::query_as(AssertSqlSafe(newest))
            .bind(function.as_str())
            .bind(i64::from(select.limit))
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn count_dead_letters(&self, function: &FunctionId) -> Result<u64> {
        let count = format!("SELECT COUNT(*) FROM function_runs WHERE function_id = $1{DEAD_LETTERS}");
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(count)).bind(function.as_str()).fetch_one(&self.readers).await?;
        Ok(unsigned(count))
    }

    async fn runs_due(&self, at: Timestamp, limit: u32, except: &[FunctionId]) -> Result<Vec<RunRecord>> {
        let others = without(except, 3);
        let due = format!(
            "{RUN} WHERE queued = 1 AND due_at_us <= $1{others}{} ORDER BY due_at_us LIMIT $2",
            in_open_workspace!()
        );
        let mut query = sqlx::query_as(AssertSqlSafe(due)).bind(at.as_microsecond()).bind(i64::from(limit));
        for function in except {
            query = query.bind(function.as_str());
        }
        let rows: Vec<RunRow> = query.fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn runs_interrupted(&self) -> Result<Vec<RunRecord>> {
        let interrupted = format!("{RUN} WHERE queued = 1 AND due_at_us IS NULL");
        let rows: Vec<RunRow> = sqlx::query_as(AssertSqlSafe(interrupted)).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn next_run_due(&self, except: &[FunctionId]) -> Result<Option<Timestamp>> {
        let others = without(except, 1);
        let first = format!(
            "SELECT MIN(due_at_us) FROM function_runs WHERE queued = 1 AND due_at_us IS NOT NULL{others}{}",
            in_open_workspace!()
        );
        let mut query = sqlx::query_scalar(AssertSqlSafe(first));
        for function in except {
            query = query.bind(function.as_str());
        }
        times(query.fetch_one(&self.readers).await?)
    }

    async fn run_figures(
        &self,
        function: &FunctionId,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunFigures>> {
        let rows: Vec<FigureRow> = sqlx::query_as(
            "SELECT duration_us, billed_ms, cold, state FROM function_runs WHERE function_id = $1 \
             AND ended_at_us IS NOT NULL AND created_at_us >= $2 ORDER BY created_at_us DESC LIMIT $3",
        )
        .bind(function.as_str())
        .bind(since.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let figures = rows.into_iter().map(|row| RunFigures {
            duration_us: unsigned(row.duration_us),
            billed_ms: unsigned(row.billed_ms),
            cold: row.cold != 0,
            failed: row.state != FunctionRunStatus::Success.as_str(),
        });
        Ok(figures.collect())
    }

    async fn prune_function_runs(&self, kept: u32) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let done = sqlx::query(
            "DELETE FROM function_runs WHERE queued = 0 AND created_at_us < (SELECT MIN(kept.created_at_us) FROM \
             (SELECT created_at_us FROM function_runs AS same WHERE same.function_id = function_runs.function_id \
             ORDER BY created_at_us DESC LIMIT $1) AS kept)",
        )
        .bind(i64::from(kept))
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(done.rows_affected())
    }
}
