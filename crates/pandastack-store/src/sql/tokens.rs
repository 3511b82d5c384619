//! API keys.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::Role;
use pandastack_types::limits::TOKENS_PER_WORKSPACE_MAX;
use sqlx::{AnyConnection, AssertSqlSafe};

use super::quotas::admit_any;
use super::rows::{TokenRow, id, records, to_json, unsigned};
use super::{SqlStore, Write};
use crate::clock::now;
use crate::{Durability, Result, StoreError, TokenRecord, TokenStore};

/// Appended to what selects keys.
pub(super) const COLUMNS: &str = "SELECT prefix, workspace_id, hash, label, role, operator, allow_from, \
     created_at_us, expires_at_us, last_used_at_us, member_id, client FROM tokens";

#[async_trait]
impl TokenStore for SqlStore {
    async fn ensure_workspace(&self, id: &WorkspaceId, at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("INSERT INTO workspaces (id, created_at_us) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(id.as_str())
            .bind(at.as_microsecond())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn insert_token(&self, token: &TokenRecord, by: Option<&str>) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&token.workspace).await?;
        check_maker(&mut write, by, token.created_at).await?;
        admit(write.conn(), &token.workspace).await?;
        insert(write.conn(), token).await?;
        write.commit().await
    }

    async fn token(&self, prefix: &str) -> Result<Option<TokenRecord>> {
        let by_prefix = AssertSqlSafe(format!("{COLUMNS} WHERE prefix = $1"));
        let row: Option<TokenRow> =
            sqlx::query_as(by_prefix).bind(prefix).fetch_optional(&self.readers).await?;
        row.map(TokenRecord::try_from).transpose()
    }

    async fn tokens(&self, workspace: &WorkspaceId) -> Result<Vec<TokenRecord>> {
        let of_workspace = format!("{COLUMNS} WHERE workspace_id = $1 ORDER BY created_at_us, prefix");
        let of_workspace = AssertSqlSafe(of_workspace);
        let rows: Vec<TokenRow> =
            sqlx::query_as(of_workspace).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn delete_token(&self, workspace: &WorkspaceId, prefix: &str) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        let keys: Vec<(String, String, i64, Option<i64>)> = sqlx::query_as(
            "SELECT prefix, role, operator, expires_at_us FROM tokens \
             WHERE workspace_id = $1 AND member_id IS NULL",
        )
        .bind(workspace.as_str())
        .fetch_all(write.conn())
        .await?;
        let known = |prefix: &str| keys.iter().find(|(known, ..)| known == prefix);
        let Some((_, role, operator, _)) = known(prefix) else {
            return Err(StoreError::NotFound { what: "key", id: prefix.to_owned() });
        };
        let now = now().as_microsecond();
        let is_good = |expires: &Option<i64>| expires.is_none_or(|end| end > now);
        let others = || keys.iter().filter(|(known, .., expires)| known != prefix && is_good(expires));
        let owner = Role::Owner.as_str();
        // Operators' keys are all of one workspace, so the last one here is the last of all.
        if *operator == 1 && !others().any(|(.., operator, _)| *operator == 1) {
            return Err(StoreError::LastToken { prefix: prefix.to_owned(), kind: "operator" });
        }
        if role == owner && !others().any(|(_, role, ..)| role == owner) {
            return Err(StoreError::LastToken { prefix: prefix.to_owned(), kind: "owner" });
        }
        sqlx::query("DELETE FROM tokens WHERE prefix = $1").bind(prefix).execute(write.conn()).await?;
        write.commit().await
    }

    async fn rotate_token(
        &self,
        prefix: &str,
        until: Timestamp,
        new: &TokenRecord,
        by: Option<&str>,
    ) -> Result<TokenRecord> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&new.workspace).await?;
        check_maker(&mut write, by, new.created_at).await?;
        // A key that expires earlier keeps its expiry.
        let ended = sqlx::query(
            "UPDATE tokens SET expires_at_us = CASE WHEN expires_at_us < $1 THEN expires_at_us ELSE $1 END \
             WHERE prefix = $2 AND workspace_id = $3 AND member_id IS NULL",
        )
        .bind(until.as_microsecond())
        .bind(prefix)
        .bind(new.workspace.as_str())
        .execute(write.conn())
        .await?;
        if ended.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "key", id: prefix.to_owned() });
        }
        admit(write.conn(), &new.workspace).await?;
        insert(write.conn(), new).await?;
        let by_prefix = AssertSqlSafe(format!("{COLUMNS} WHERE prefix = $1"));
        let old: TokenRow = sqlx::query_as(by_prefix).bind(prefix).fetch_one(write.conn()).await?;
        write.commit().await?;
        old.try_into()
    }

    async fn touch_tokens(&self, used: &[(String, Timestamp)]) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        for (prefix, at) in used {
            sqlx::query("UPDATE tokens SET last_used_at_us = $1 WHERE prefix = $2")
                .bind(at.as_microsecond())
                .bind(prefix)
                .execute(write.conn())
                .await?;
        }
        write.commit().await
    }

    async fn count_tokens(&self) -> Result<u64> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tokens").fetch_one(&self.readers).await?;
        Ok(unsigned(count))
    }
}

/// Refuses to create a key with one that was revoked, has expired, or belongs to a closed
/// workspace. The request was authenticated before its body was read, so this is checked again in
/// the transaction.
async fn check_maker(write: &mut Write, by: Option<&str>, at: Timestamp) -> Result<()> {
    let Some(prefix) = by else { return Ok(()) };
    let select = "SELECT workspace_id FROM tokens WHERE prefix = $1 \
                  AND (expires_at_us IS NULL OR expires_at_us > $2)";
    let select = AssertSqlSafe(format!("{select}{}", write.lock_clause()));
    let workspace: Option<String> = sqlx::query_scalar(select)
        .bind(prefix)
        .bind(at.as_microsecond())
        .fetch_optional(write.conn())
        .await?;
    let workspace = workspace.ok_or_else(|| StoreError::Revoked { prefix: prefix.to_owned() })?;
    admit_any(write.conn(), &id(workspace)?).await
}

/// Refuses a key beyond a workspace's limit, and any key for a workspace that is being deleted.
async fn admit(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let open: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM workspaces WHERE id = $1 AND state IN ('active', 'suspended')")
            .bind(workspace.as_str())
            .fetch_optional(&mut *conn)
            .await?;
    if open.is_none() {
        return Err(StoreError::NotFound { what: "workspace", id: workspace.to_string() });
    }
    let keys = "SELECT COUNT(*) FROM tokens WHERE workspace_id = $1 AND member_id IS NULL";
    let count: i64 = sqlx::query_scalar(keys).bind(workspace.as_str()).fetch_one(conn).await?;
    match unsigned(count) >= TOKENS_PER_WORKSPACE_MAX {
        true => Err(StoreError::Quota { what: "keys", limit: TOKENS_PER_WORKSPACE_MAX }),
        false => Ok(()),
    }
}

pub(super) async fn insert(conn: &mut AnyConnection, token: &TokenRecord) -> Result<()> {
    let allow_from = match token.allow_from.is_empty() {
        true => None,
        false => Some(to_json("networks of a key", &token.allow_from)?),
    };
    sqlx::query(
        "INSERT INTO tokens (prefix, workspace_id, hash, label, role, operator, allow_from, created_at_us, \
         expires_at_us, member_id, client) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    )
    .bind(&token.prefix)
    .bind(token.workspace.as_str())
    .bind(&token.hash)
    .bind(&token.label)
    .bind(token.role.as_str())
    .bind(i64::from(token.operator))
    .bind(allow_from)
    .bind(token.created_at.as_microsecond())
    .bind(token.expires_at.map(Timestamp::as_microsecond))
    .bind(token.session.as_ref().map(|session| session.member.as_str()))
    .bind(token.session.as_ref().map(|session| session.client.as_str()))
    .execute(conn)
    .await?;
    Ok(())
}
