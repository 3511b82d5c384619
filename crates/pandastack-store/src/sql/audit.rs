//! The audit log and its hash chain.
//!
//! Appending locks the row with the newest hash, so that servers on one database append one after
//! another: the order of ids is the order of commits and of the chain.

use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::AuditEntry;
use pandastack_types::audit::{self, AuditLine};

use super::rows::{signed, time, unsigned};
use super::{SqlStore, corrupt};
use crate::ledger::{AuditEnds, AuditRecord, AuditSelect};
use crate::{Durability, Result};

/// Row of the installation with the hash of the newest entry.
const HEAD: &str = "audit_head";
/// With the hash of the newest entry that was pruned.
const PRUNED: &str = "audit_pruned";
/// With the id of the entry that was exported last.
const EXPORTED: &str = "audit_exported";

#[derive(sqlx::FromRow)]
struct AuditRow {
    id: i64,
    at_us: i64,
    token_prefix: String,
    token_label: String,
    method: String,
    route: String,
    path: String,
    sandbox_id: Option<String>,
    status: i64,
    request_id: String,
    took_ms: i64,
}

impl AuditRow {
    fn entry(self) -> Result<AuditEntry> {
        Ok(AuditEntry {
            id: self.id,
            at: time(self.at_us)?,
            token_prefix: self.token_prefix,
            token_label: self.token_label,
            method: self.method,
            route: self.route,
            path: self.path,
            sandbox_id: self.sandbox_id.map(|id| id.parse()).transpose().map_err(corrupt("sandbox id"))?,
            status: u16::try_from(self.status).map_err(corrupt("audit status"))?,
            request_id: self.request_id,
            took_ms: unsigned(self.took_ms),
        })
    }
}

#[derive(sqlx::FromRow)]
struct AuditLineRow {
    #[sqlx(flatten)]
    entry: AuditRow,
    workspace_id: String,
    previous: String,
    hash: String,
}

impl AuditLineRow {
    fn line(self) -> Result<AuditLine> {
        let workspace: WorkspaceId = self.workspace_id.parse().map_err(corrupt("workspace id"))?;
        Ok(AuditLine { workspace, entry: self.entry.entry()?, previous: self.previous, hash: self.hash })
    }
}

pub(super) async fn insert(store: &SqlStore, records: &[AuditRecord]) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let mut write = store.write(Durability::Process).await?;
    let lock = "UPDATE installation SET value = value WHERE name = $1 RETURNING value";
    let mut head: String = sqlx::query_scalar(lock).bind(HEAD).fetch_one(write.conn()).await?;
    for AuditRecord { workspace, entry } in records {
        let hash = audit::hash(&head, workspace, entry);
        sqlx::query(
            "INSERT INTO audit (workspace_id, at_us, token_prefix, token_label, method, route, path, sandbox_id, \
             status, request_id, took_ms, previous, hash) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        )
        .bind(workspace.as_str())
        .bind(entry.at.as_microsecond())
        .bind(&entry.token_prefix)
        .bind(&entry.token_label)
        .bind(&entry.method)
        .bind(&entry.route)
        .bind(&entry.path)
        .bind(entry.sandbox_id.as_ref().map(|id| id.as_str()))
        .bind(i64::from(entry.status))
        .bind(&entry.request_id)
        .bind(signed(entry.took_ms))
        .bind(&head)
        .bind(&hash)
        .execute(write.conn())
        .await?;
        head = hash;
    }
    put(&mut write, HEAD, &head).await?;
    write.commit().await
}

pub(super) async fn list(
    store: &SqlStore,
    workspace: &WorkspaceId,
    select: &AuditSelect,
) -> Result<Vec<AuditEntry>> {
    let rows: Vec<AuditRow> = sqlx::query_as(
        "SELECT id, at_us, token_prefix, token_label, method, route, path, sandbox_id, status, request_id, took_ms \
         FROM audit WHERE workspace_id = $1 AND id < $2 AND (CAST($3 AS TEXT) IS NULL OR sandbox_id = $3) \
         ORDER BY id DESC LIMIT $4",
    )
    .bind(workspace.as_str())
    .bind(select.before.unwrap_or(i64::MAX))
    .bind(select.sandbox.as_ref().map(|id| id.as_str()))
    .bind(i64::from(select.limit))
    .fetch_all(&store.readers)
    .await?;
    rows.into_iter().map(AuditRow::entry).collect()
}

pub(super) async fn lines(store: &SqlStore, after: i64, limit: u32) -> Result<Vec<AuditLine>> {
    let rows: Vec<AuditLineRow> = sqlx::query_as(
        "SELECT id, at_us, token_prefix, token_label, method, route, path, sandbox_id, status, request_id, took_ms, \
         workspace_id, previous, hash FROM audit WHERE id > $1 AND hash IS NOT NULL ORDER BY id LIMIT $2",
    )
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(&store.readers)
    .await?;
    rows.into_iter().map(AuditLineRow::line).collect()
}

pub(super) async fn chain_ends(store: &SqlStore) -> Result<AuditEnds> {
    let (pruned, head) = sqlx::query_as(
        "SELECT (SELECT value FROM installation WHERE name = $1), (SELECT value FROM installation WHERE name = $2)",
    )
    .bind(PRUNED)
    .bind(HEAD)
    .fetch_one(&store.readers)
    .await?;
    Ok(AuditEnds { pruned, head })
}

pub(super) async fn exported(store: &SqlStore) -> Result<i64> {
    let text: String = sqlx::query_scalar("SELECT value FROM installation WHERE name = $1")
        .bind(EXPORTED)
        .fetch_one(&store.readers)
        .await?;
    text.parse().map_err(corrupt("id of an audit entry"))
}

pub(super) async fn put_exported(store: &SqlStore, id: i64) -> Result<()> {
    let mut write = store.write(Durability::Process).await?;
    put(&mut write, EXPORTED, &id.to_string()).await?;
    write.commit().await
}

/// Removes only a prefix of the chain: an entry of a long call may be older than those before it.
pub(super) async fn prune(store: &SqlStore, before: Timestamp) -> Result<u64> {
    let mut write = store.write(Durability::Process).await?;
    let kept: Option<i64> = sqlx::query_scalar("SELECT MIN(id) FROM audit WHERE at_us >= $1")
        .bind(before.as_microsecond())
        .fetch_one(write.conn())
        .await?;
    let kept = kept.unwrap_or(i64::MAX);
    let newest: Option<Option<String>> =
        sqlx::query_scalar("SELECT hash FROM audit WHERE id < $1 ORDER BY id DESC LIMIT 1")
            .bind(kept)
            .fetch_optional(write.conn())
            .await?;
    if let Some(Some(hash)) = newest {
        put(&mut write, PRUNED, &hash).await?;
    }
    let done = sqlx::query("DELETE FROM audit WHERE id < $1").bind(kept).execute(write.conn()).await?;
    write.commit().await?;
    Ok(done.rows_affected())
}

async fn put(write: &mut super::Write, name: &str, value: &str) -> Result<()> {
    sqlx::query("UPDATE installation SET value = $1 WHERE name = $2")
        .bind(value)
        .bind(name)
        .execute(write.conn())
        .await?;
    Ok(())
}
