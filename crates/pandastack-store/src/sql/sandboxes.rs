//! Sandboxes and their transitions.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::{Event, WebhookEventKind};
use pandastack_types::limits::WEBHOOK_METADATA_BYTES_MAX;
use pandastack_types::{Owner, SandboxId, SandboxState, Transition, TreeId, WorkspaceId};
use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe};

use super::hosts::insert_usage;
use super::quotas::admit_sandbox;
use super::rows::{SandboxRow, signed, state, time, to_json, unsigned};
use super::sealed_columns::SANDBOXES;
use super::{SqlStore, Write, insert_event, names, webhooks};
use crate::names::Named;
use crate::record::usage_since;
use crate::webhooks::WebhookEvent;
use crate::{
    Amendment, Change, Durability, IdempotencyKey, Promotion, Result, SandboxRecord, SandboxStore,
    SandboxUpdate, Select, StoreError, durability_of,
};

const BY_ID: &str = "SELECT * FROM sandboxes WHERE id = $1";
const BY_WORKSPACE: &str =
    "SELECT * FROM sandboxes WHERE workspace_id = $1 AND owner IS NULL ORDER BY created_at_us, id";
const BY_OWNER: &str = "SELECT * FROM sandboxes WHERE owner = $1 ORDER BY created_at_us, id";
const BY_HOST: &str = "SELECT * FROM sandboxes WHERE host_id = $1 ORDER BY created_at_us, id";
const BY_TREE: &str =
    "SELECT * FROM sandboxes WHERE workspace_id = $1 AND tree_id = $2 ORDER BY created_at_us, id";
const BY_PARENT: &str =
    "SELECT * FROM sandboxes WHERE workspace_id = $1 AND parent_id = $2 ORDER BY created_at_us, id";
const DUE: &str = concat!(
    "SELECT * FROM sandboxes WHERE expires_at_us <= $1 AND state NOT IN ('creating', 'stopping')",
    in_open_workspace!(),
    " ORDER BY expires_at_us"
);
/// With those of services.
const ALL_OF_WORKSPACE: &str = "SELECT * FROM sandboxes WHERE workspace_id = $1 ORDER BY created_at_us, id";

/// Reason for deleting the siblings of a promoted child.
const PROMOTED_INSTEAD: &str = "another child of its tree was promoted";

#[async_trait]
impl SandboxStore for SqlStore {
    async fn insert_sandboxes(
        &self,
        new: &[SandboxRecord],
        key: Option<&IdempotencyKey>,
    ) -> Result<Vec<Event>> {
        let mut write = self.write(Durability::Process).await?;
        let mut events = Vec::with_capacity(new.len());
        for record in new {
            write.lock_workspace(&record.workspace).await?;
            admit_sandbox(write.conn(), record).await?;
            names::check_free(&mut write, Named::Sandbox, &record.workspace, record.spec.name.as_deref())
                .await?;
            insert(&mut write, record).await?;
            super::volumes::attach(&mut write, record).await?;
            let at = record.created_at;
            events
                .push(insert_event(write.conn(), &record.workspace, &record.id, "creating", at, None).await?);
        }
        if let (Some(key), Some(first)) = (key, new.first()) {
            sqlx::query("UPDATE idempotency SET sandbox_id = $1 WHERE workspace_id = $2 AND key = $3")
                .bind(first.id.as_str())
                .bind(key.workspace.as_str())
                .bind(&key.key)
                .execute(write.conn())
                .await?;
        }
        write.commit().await?;
        Ok(events)
    }

    async fn sandbox(&self, workspace: Option<&WorkspaceId>, id: &SandboxId) -> Result<SandboxRecord> {
        let row: Option<SandboxRow> =
            sqlx::query_as(BY_ID).bind(id.as_str()).fetch_optional(&self.readers).await?;
        let record: Option<SandboxRecord> = row.map(|row| self.sealer.record(row)).transpose()?;
        record.filter(|record| workspace.is_none_or(|w| *w == record.workspace)).ok_or_else(|| unknown(id))
    }

    async fn sandboxes(&self, select: &Select) -> Result<Vec<SandboxRecord>> {
        let query = match select {
            Select::Workspace(workspace) => sqlx::query_as(BY_WORKSPACE).bind(workspace.as_str()),
            Select::WholeWorkspace(workspace) => sqlx::query_as(ALL_OF_WORKSPACE).bind(workspace.as_str()),
            Select::Owner(owner) => sqlx::query_as(BY_OWNER).bind(owner.to_string()),
            Select::Host(host) => sqlx::query_as(BY_HOST).bind(host.as_str()),
            Select::Tree(workspace, tree) => {
                sqlx::query_as(BY_TREE).bind(workspace.as_str()).bind(tree.as_str())
            }
            Select::Children(workspace, parent) => {
                sqlx::query_as(BY_PARENT).bind(workspace.as_str()).bind(parent.as_str())
            }
            Select::Due(at) => sqlx::query_as(DUE).bind(at.as_microsecond()),
        };
        let rows: Vec<SandboxRow> = query.fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }

    async fn transition(
        &self,
        id: &SandboxId,
        transition: Transition,
        change: &Change,
    ) -> Result<SandboxUpdate> {
        let mut write = self.write(durability_of(transition)).await?;
        let mut record = find(&mut write, id).await?.ok_or_else(|| unknown(id))?;
        let moved = record.apply(transition, change)?;
        let mut used = change.seen.as_ref().map(|seen| usage_since(record.spec.usage, seen.usage));
        if let (Some(used), Some(seen)) = (used.take_if(|used| *used != Usage::default()), &change.seen) {
            record.spec.usage = seen.usage;
            insert_usage(write.conn(), &record, change.at, 0, used).await?;
        }
        if moved && transition == Transition::Created {
            insert_usage(write.conn(), &record, change.at, 1, Usage::default()).await?;
        }
        match record.state {
            SandboxState::Deleted => remove(write.conn(), id).await?,
            _ => update(&mut write, &record).await?,
        }
        let mut event = None;
        if moved {
            let (workspace, kind) = (&record.workspace, transition.as_str());
            let detail = change.detail.as_deref();
            let inserted = insert_event(write.conn(), workspace, id, kind, change.at, detail).await?;
            if let Some(notice) = notice(&record, transition, &inserted) {
                webhooks::queue(&mut write, &notice).await?;
            }
            event = Some(inserted);
        }
        write.commit().await?;
        Ok(SandboxUpdate { record, event })
    }

    async fn amend(&self, id: &SandboxId, amendment: &Amendment, at: Timestamp) -> Result<SandboxUpdate> {
        let mut write = self.write(Durability::Power).await?;
        let mut record = find(&mut write, id).await?.ok_or_else(|| unknown(id))?;
        let (kind, detail) = record.amend(amendment);
        update(&mut write, &record).await?;
        let event = insert_event(write.conn(), &record.workspace, id, kind, at, detail.as_deref()).await?;
        write.commit().await?;
        Ok(SandboxUpdate { record, event: Some(event) })
    }

    async fn promote(
        &self,
        workspace: &WorkspaceId,
        tree: &TreeId,
        winner: &SandboxId,
        alone: bool,
        at: Timestamp,
    ) -> Result<Promotion> {
        let mut write = self.write(Durability::Power).await?;
        // Locks the whole tree, always in the same order: a second promotion in it waits here and
        // then sees what this one did.
        let by_tree = AssertSqlSafe(format!("{BY_TREE}{}", write.lock_clause()));
        let rows: Vec<SandboxRow> = sqlx::query_as(by_tree)
            .bind(workspace.as_str())
            .bind(tree.as_str())
            .fetch_all(write.conn())
            .await?;
        let (mut won, siblings): (Vec<_>, Vec<_>) =
            self.sealer.records(rows)?.into_iter().partition(|record: &SandboxRecord| record.id == *winner);
        let mut record = won.pop().ok_or_else(|| unknown(winner))?;
        record.promote(at)?;
        update(&mut write, &record).await?;
        let event = insert_event(write.conn(), workspace, winner, "promoted", at, None).await?;
        let mut promotion = Promotion { events: vec![event], leaving: Vec::new(), staying: Vec::new() };
        let change = Change::at(at).because(PROMOTED_INSTEAD);
        for mut sibling in siblings.into_iter().filter(|_| alone) {
            // A sibling that is being deleted stays so, promoted or not.
            if sibling.spec.promoted && sibling.state != SandboxState::Stopping {
                promotion.staying.push(sibling.id);
                continue;
            }
            if sibling.apply(Transition::Deleting, &change)? {
                update(&mut write, &sibling).await?;
                let kind = Transition::Deleting.as_str();
                let why = change.detail.as_deref();
                promotion
                    .events
                    .push(insert_event(write.conn(), workspace, &sibling.id, kind, at, why).await?);
            }
            promotion.leaving.push(sibling);
        }
        write.commit().await?;
        Ok(promotion)
    }

    async fn next_expiry(&self) -> Result<Option<Timestamp>> {
        let us: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT MIN(expires_at_us) FROM sandboxes WHERE expires_at_us IS NOT NULL ",
            "AND state NOT IN ('creating', 'stopping')",
            in_open_workspace!()
        ))
        .fetch_one(&self.readers)
        .await?;
        us.map(time).transpose()
    }

    async fn count_states(&self) -> Result<Vec<(SandboxState, u64)>> {
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT state, COUNT(*) FROM sandboxes GROUP BY state")
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter().map(|(name, count)| Ok((state(&name)?, unsigned(count)))).collect()
    }
}

/// What webhooks get of a transition. Machines of services are not sandboxes to their users.
fn notice(record: &SandboxRecord, transition: Transition, event: &Event) -> Option<WebhookEvent> {
    let kind = match transition {
        Transition::Created => WebhookEventKind::SandboxCreated,
        Transition::Paused => WebhookEventKind::SandboxPaused,
        Transition::Resumed => WebhookEventKind::SandboxResumed,
        Transition::Hibernated => WebhookEventKind::SandboxHibernated,
        Transition::Woken => WebhookEventKind::SandboxWoken,
        Transition::Lost => WebhookEventKind::SandboxFailed,
        Transition::Deleted => WebhookEventKind::SandboxDeleted,
        Transition::Deleting => return None,
    };
    let fits = |text: String| text.len() <= WEBHOOK_METADATA_BYTES_MAX;
    let metadata = serde_json::to_string(&record.metadata).is_ok_and(fits).then_some(&record.metadata);
    let data = json!({
        "sandbox_id": record.id, "name": record.spec.name, "template": record.template,
        "metadata": metadata, "detail": event.detail,
    });
    let (id, workspace) = (format!("evt_{}", event.id), record.workspace.clone());
    record.owner.is_none().then_some(WebhookEvent { id, workspace, kind, at: event.at, data })
}

fn unknown(id: &SandboxId) -> StoreError {
    StoreError::NotFound { what: "sandbox", id: id.to_string() }
}

/// The row, read to be changed within a transaction.
pub(super) async fn find(write: &mut Write, id: &SandboxId) -> Result<Option<SandboxRecord>> {
    let by_id = AssertSqlSafe(format!("{BY_ID}{}", write.lock_clause()));
    let row: Option<SandboxRow> =
        sqlx::query_as(by_id).bind(id.as_str()).fetch_optional(write.conn()).await?;
    row.map(|row| write.sealer.record(row)).transpose()
}

fn spec(write: &Write, record: &SandboxRecord) -> Result<String> {
    write.sealer.to_json(&SANDBOXES, record.workspace.as_str(), record.id.as_str(), &record.spec)
}

async fn insert(write: &mut Write, record: &SandboxRecord) -> Result<()> {
    sqlx::query(
        "INSERT INTO sandboxes (id, workspace_id, host_id, state, incarnation, template, parent_id, tree_id, \
         created_at_us, changed_at_us, expires_at_us, metadata, spec, owner, cpu, memory_mb, name) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(record.id.as_str())
    .bind(record.workspace.as_str())
    .bind(record.host.as_str())
    .bind(record.state.as_str())
    .bind(signed(record.incarnation))
    .bind(&record.template)
    .bind(record.parent.as_ref().map(SandboxId::as_str))
    .bind(record.tree.as_ref().map(|tree| tree.as_str()))
    .bind(record.created_at.as_microsecond())
    .bind(record.changed_at.as_microsecond())
    .bind(record.expires_at.map(Timestamp::as_microsecond))
    .bind(to_json("sandbox metadata", &record.metadata)?)
    .bind(spec(write, record)?)
    .bind(record.owner.as_ref().map(Owner::to_string))
    .bind(i64::from(record.spec.cpu))
    .bind(i64::from(record.spec.memory_mb))
    .bind(record.spec.name.as_deref())
    .execute(write.conn())
    .await?;
    Ok(())
}

/// Writes what can change, within a transaction.
pub(super) async fn update(write: &mut Write, record: &SandboxRecord) -> Result<()> {
    sqlx::query(
        "UPDATE sandboxes SET state = $1, template = $2, changed_at_us = $3, expires_at_us = $4, metadata = $5, \
         spec = $6 WHERE id = $7",
    )
    .bind(record.state.as_str())
    .bind(&record.template)
    .bind(record.changed_at.as_microsecond())
    .bind(record.expires_at.map(Timestamp::as_microsecond))
    .bind(to_json("sandbox metadata", &record.metadata)?)
    .bind(spec(write, record)?)
    .bind(record.id.as_str())
    .execute(write.conn())
    .await?;
    Ok(())
}

async fn remove(conn: &mut AnyConnection, id: &SandboxId) -> Result<()> {
    sqlx::query("DELETE FROM sandboxes WHERE id = $1").bind(id.as_str()).execute(conn).await?;
    Ok(())
}
