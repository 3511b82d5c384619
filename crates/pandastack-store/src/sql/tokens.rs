//! Workspaces and keys.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::Scope;
use pandastack_types::limits::TOKENS_PER_WORKSPACE_MAX;

use super::SqlStore;
use super::rows::{TokenRow, records, unsigned};
use crate::{Durability, Result, StoreError, TokenRecord, TokenStore};

const COLUMNS_BY_PREFIX: &str = "SELECT prefix, workspace_id, hash, label, scope, created_at_us, \
     expires_at_us FROM tokens WHERE prefix = $1";
const COLUMNS_BY_WORKSPACE: &str = "SELECT prefix, workspace_id, hash, label, scope, created_at_us, \
     expires_at_us FROM tokens WHERE workspace_id = $1 ORDER BY created_at_us, prefix";

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

    async fn insert_token(&self, token: &TokenRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&token.workspace).await?;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tokens WHERE workspace_id = $1")
            .bind(token.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= TOKENS_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "keys", limit: TOKENS_PER_WORKSPACE_MAX });
        }
        sqlx::query(
            "INSERT INTO tokens (prefix, workspace_id, hash, label, scope, created_at_us, expires_at_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(&token.prefix)
        .bind(token.workspace.as_str())
        .bind(&token.hash)
        .bind(&token.label)
        .bind(token.scope.as_str())
        .bind(token.created_at.as_microsecond())
        .bind(token.expires_at.map(Timestamp::as_microsecond))
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn token(&self, prefix: &str) -> Result<Option<TokenRecord>> {
        let row: Option<TokenRow> =
            sqlx::query_as(COLUMNS_BY_PREFIX).bind(prefix).fetch_optional(&self.readers).await?;
        row.map(TokenRecord::try_from).transpose()
    }

    async fn tokens(&self, workspace: &WorkspaceId) -> Result<Vec<TokenRecord>> {
        let rows: Vec<TokenRow> =
            sqlx::query_as(COLUMNS_BY_WORKSPACE).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn delete_token(&self, workspace: &WorkspaceId, prefix: &str) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        let keys: Vec<(String, String)> =
            sqlx::query_as("SELECT prefix, scope FROM tokens WHERE workspace_id = $1")
                .bind(workspace.as_str())
                .fetch_all(write.conn())
                .await?;
        if !keys.iter().any(|(known, _)| known == prefix) {
            return Err(StoreError::NotFound { what: "key", id: prefix.to_owned() });
        }
        let is_admin = |(_, scope): &&(String, String)| scope == Scope::Admin.as_str();
        if keys.iter().filter(is_admin).all(|(known, _)| known == prefix) {
            return Err(StoreError::LastToken(prefix.to_owned()));
        }
        sqlx::query("DELETE FROM tokens WHERE prefix = $1").bind(prefix).execute(write.conn()).await?;
        write.commit().await
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
