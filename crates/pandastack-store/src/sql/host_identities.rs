//! Hosts with a certificate, join tokens and the authority.

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use pandastack_types::host_identity::{HostIdentity, HostRole};
use pandastack_types::{HostId, WorkspaceId};
use sqlx::AssertSqlSafe;

use super::replicas::{CHANNEL, SHARED_SECRET_CHANGED};
use super::rows::{from_json, id, time, times};
use super::seal::sealed_row;
use super::sealed_columns::HOST_AUTHORITY;
use super::{Backend, SqlStore, Write, corrupt};
use crate::host_identities::{
    AuthorityRecord, HOST_TOKENS_MAX, HostIdentityRecord, HostIdentityStore, HostTokenRecord, SharedSecret,
};
use crate::{Durability, Result, StoreError};

/// The one row of the authority.
const AUTHORITY: &str = "hosts";
/// Name of the installation's row with the policy for the shared secret.
const SHARED_SECRET: &str = "shared_secret";
/// A token is kept for so long after its end, so that its use is explained.
const TOKENS_KEPT: SignedDuration = SignedDuration::from_hours(24);
const IDENTITIES: &str = "SELECT id, role, membership, joined_at_us, expires_at_us, removed_at_us FROM \
     host_identities";
const TOKENS: &str = "SELECT id, hash, role, host_id, created_by, created_at_us, expires_at_us, used_at_us, \
     used_by FROM host_tokens";

#[derive(sqlx::FromRow)]
struct AuthorityRow {
    id: String,
    workspace_id: String,
    spec: String,
}

sealed_row!(AuthorityRow, HOST_AUTHORITY);

impl TryFrom<AuthorityRow> for AuthorityRecord {
    type Error = StoreError;
    fn try_from(row: AuthorityRow) -> Result<Self> {
        from_json("host authority", &row.spec)
    }
}

#[derive(sqlx::FromRow)]
struct IdentityRow {
    id: String,
    role: String,
    membership: i64,
    joined_at_us: i64,
    expires_at_us: i64,
    removed_at_us: Option<i64>,
}

impl TryFrom<IdentityRow> for HostIdentityRecord {
    type Error = StoreError;
    fn try_from(row: IdentityRow) -> Result<Self> {
        Ok(Self {
            identity: HostIdentity {
                role: role(&row.role)?,
                host: id(row.id)?,
                membership: u32::try_from(row.membership).map_err(corrupt("membership"))?,
            },
            joined_at: time(row.joined_at_us)?,
            expires_at: time(row.expires_at_us)?,
            removed_at: times(row.removed_at_us)?,
        })
    }
}

#[derive(sqlx::FromRow)]
struct TokenRow {
    id: String,
    hash: Vec<u8>,
    role: String,
    host_id: Option<String>,
    created_by: String,
    created_at_us: i64,
    expires_at_us: i64,
    used_at_us: Option<i64>,
    used_by: Option<String>,
}

impl TryFrom<TokenRow> for HostTokenRecord {
    type Error = StoreError;
    fn try_from(row: TokenRow) -> Result<Self> {
        Ok(Self {
            id: row.id,
            hash: row.hash,
            role: role(&row.role)?,
            host: row.host_id.map(id).transpose()?,
            created_by: row.created_by,
            created_at: time(row.created_at_us)?,
            expires_at: time(row.expires_at_us)?,
            used_at: times(row.used_at_us)?,
            used_by: row.used_by.map(id).transpose()?,
        })
    }
}

fn role(text: &str) -> Result<HostRole> {
    text.parse().map_err(corrupt("role of a host"))
}

#[async_trait]
impl HostIdentityStore for SqlStore {
    async fn host_authority(&self, fresh: &AuthorityRecord) -> Result<AuthorityRecord> {
        let workspace = WorkspaceId::default_workspace();
        let mut write = self.write(Durability::Power).await?;
        let spec = write.sealer.to_json(&HOST_AUTHORITY, workspace.as_str(), AUTHORITY, fresh)?;
        let insert = "INSERT INTO host_authority (id, workspace_id, spec) VALUES ($1, $2, $3)";
        sqlx::query(AssertSqlSafe(format!("{insert} ON CONFLICT DO NOTHING")))
            .bind(AUTHORITY)
            .bind(workspace.as_str())
            .bind(&spec)
            .execute(write.conn())
            .await?;
        let select = "SELECT id, workspace_id, spec FROM host_authority WHERE id = $1";
        let row: AuthorityRow = sqlx::query_as(select).bind(AUTHORITY).fetch_one(write.conn()).await?;
        let mut record: AuthorityRecord = write.sealer.record(row)?;
        if record.key.is_none() {
            sqlx::query(AssertSqlSafe(format!(
                "{insert} ON CONFLICT (id) DO UPDATE SET spec = excluded.spec"
            )))
            .bind(AUTHORITY)
            .bind(workspace.as_str())
            .bind(&spec)
            .execute(write.conn())
            .await?;
            record = fresh.clone();
        }
        write.commit().await?;
        Ok(record)
    }

    async fn insert_host_token(&self, token: &HostTokenRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let ended = token.created_at.saturating_sub(TOKENS_KEPT).unwrap_or(Timestamp::MIN);
        sqlx::query("DELETE FROM host_tokens WHERE expires_at_us < $1")
            .bind(ended.as_microsecond())
            .execute(write.conn())
            .await?;
        let count: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM host_tokens").fetch_one(write.conn()).await?;
        if super::rows::unsigned(count) >= HOST_TOKENS_MAX {
            return Err(StoreError::Quota { what: "join tokens", limit: HOST_TOKENS_MAX });
        }
        sqlx::query(
            "INSERT INTO host_tokens (id, hash, role, host_id, created_by, created_at_us, expires_at_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(&token.id)
        .bind(token.hash.as_slice())
        .bind(token.role.as_str())
        .bind(token.host.as_ref().map(HostId::as_str))
        .bind(&token.created_by)
        .bind(token.created_at.as_microsecond())
        .bind(token.expires_at.as_microsecond())
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn host_token(&self, id: &str) -> Result<Option<HostTokenRecord>> {
        let row: Option<TokenRow> = sqlx::query_as(AssertSqlSafe(format!("{TOKENS} WHERE id = $1")))
            .bind(id)
            .fetch_optional(&self.readers)
            .await?;
        row.map(HostTokenRecord::try_from).transpose()
    }

    async fn join_host(
        &self,
        token: &str,
        host: &HostId,
        at: Timestamp,
        expires_at: Timestamp,
    ) -> Result<HostIdentityRecord> {
        let mut write = self.write(Durability::Power).await?;
        let used: Option<TokenRow> = sqlx::query_as(
            "UPDATE host_tokens SET used_at_us = $1, used_by = $2 WHERE id = $3 AND used_at_us IS NULL \
             AND expires_at_us > $1 RETURNING id, hash, role, host_id, created_by, created_at_us, \
             expires_at_us, used_at_us, used_by",
        )
        .bind(at.as_microsecond())
        .bind(host.as_str())
        .bind(token)
        .fetch_optional(write.conn())
        .await?;
        let used = used.ok_or_else(|| {
            StoreError::Held("the join token was used before or has expired; make another".to_owned())
        })?;
        let token = HostTokenRecord::try_from(used)?;
        let known = find(&mut write, host).await?;
        let is_known = known.is_some() || has_reported(&mut write, host).await?;
        if token.host.as_ref() != Some(host) && (is_known || token.host.is_some()) {
            return Err(StoreError::Held(format!(
                "host `{host}` needs a token of its own; make it with `pandastack host token --host {host}`"
            )));
        }
        let other = known.filter(|known| known.identity.role != token.role);
        if let Some(other) = other {
            let role = other.identity.role;
            return Err(StoreError::Held(format!("`{host}` is the id of an {role}; choose another")));
        }
        let joined = join(&mut write, token.role, host, at, expires_at).await?;
        write.commit().await?;
        Ok(joined)
    }

    async fn migrate_host(
        &self,
        role: HostRole,
        host: &HostId,
        at: Timestamp,
        expires_at: Timestamp,
    ) -> Result<HostIdentityRecord> {
        let mut write = self.write(Durability::Power).await?;
        if find(&mut write, host).await?.is_some() {
            return Err(StoreError::Held(format!(
                "host `{host}` has a certificate already; if this is not the host that got it, somebody else \
                 used the shared secret: remove the host, and rotate the secret"
            )));
        }
        let joined = join(&mut write, role, host, at, expires_at).await?;
        write.commit().await?;
        Ok(joined)
    }

    async fn renew_host(&self, member: &HostIdentity, expires_at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let renewed = sqlx::query(
            "UPDATE host_identities SET expires_at_us = $1 WHERE id = $2 AND role = $3 AND membership = $4 \
             AND removed_at_us IS NULL",
        )
        .bind(expires_at.as_microsecond())
        .bind(member.host.as_str())
        .bind(member.role.as_str())
        .bind(i64::from(member.membership))
        .execute(write.conn())
        .await?;
        if renewed.rows_affected() == 0 {
            return Err(StoreError::Held(format!("host `{}` was removed", member.host)));
        }
        write.commit().await
    }

    async fn remove_host(&self, host: &HostId, at: Timestamp) -> Result<HostIdentityRecord> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE host_identities SET removed_at_us = $1 WHERE id = $2 AND removed_at_us IS NULL")
            .bind(at.as_microsecond())
            .bind(host.as_str())
            .execute(write.conn())
            .await?;
        let absent = || StoreError::NotFound { what: "host", id: host.to_string() };
        let removed = find(&mut write, host).await?.ok_or_else(absent)?;
        write.commit().await?;
        Ok(removed)
    }

    async fn host_identities(&self) -> Result<Vec<HostIdentityRecord>> {
        let rows: Vec<IdentityRow> = sqlx::query_as(AssertSqlSafe(format!("{IDENTITIES} ORDER BY id")))
            .fetch_all(&self.readers)
            .await?;
        super::rows::records(rows)
    }

    async fn host_identity(&self, host: &HostId) -> Result<Option<HostIdentityRecord>> {
        let row: Option<IdentityRow> = sqlx::query_as(AssertSqlSafe(format!("{IDENTITIES} WHERE id = $1")))
            .bind(host.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(HostIdentityRecord::try_from).transpose()
    }

    async fn shared_secret(&self, initial: SharedSecret) -> Result<SharedSecret> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("INSERT INTO installation (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(SHARED_SECRET)
            .bind(initial.as_str())
            .execute(write.conn())
            .await?;
        let policy: String = sqlx::query_scalar("SELECT value FROM installation WHERE name = $1")
            .bind(SHARED_SECRET)
            .fetch_one(write.conn())
            .await?;
        write.commit().await?;
        SharedSecret::parse(&policy).ok_or_else(|| StoreError::Corrupt {
            what: "policy for the shared secret",
            source: format!("`{policy}` is not a policy").into(),
        })
    }

    async fn set_shared_secret(&self, policy: SharedSecret) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE installation SET value = $1 WHERE name = $2")
            .bind(policy.as_str())
            .bind(SHARED_SECRET)
            .execute(write.conn())
            .await?;
        if matches!(self.backend, Backend::Postgres(_)) {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(CHANNEL)
                .bind(SHARED_SECRET_CHANGED)
                .execute(write.conn())
                .await?;
        }
        write.commit().await
    }
}

async fn find(write: &mut Write, host: &HostId) -> Result<Option<HostIdentityRecord>> {
    let row: Option<IdentityRow> = sqlx::query_as(AssertSqlSafe(format!("{IDENTITIES} WHERE id = $1")))
        .bind(host.as_str())
        .fetch_optional(write.conn())
        .await?;
    row.map(HostIdentityRecord::try_from).transpose()
}

async fn has_reported(write: &mut Write, host: &HostId) -> Result<bool> {
    let found: Option<i64> = sqlx::query_scalar("SELECT last_seen_at_us FROM hosts WHERE id = $1")
        .bind(host.as_str())
        .fetch_optional(write.conn())
        .await?;
    Ok(found.is_some())
}

/// The next membership of a host.
async fn join(
    write: &mut Write,
    role: HostRole,
    host: &HostId,
    at: Timestamp,
    expires_at: Timestamp,
) -> Result<HostIdentityRecord> {
    let row: IdentityRow = sqlx::query_as(
        "INSERT INTO host_identities (id, role, membership, joined_at_us, expires_at_us) \
         VALUES ($1, $2, 1, $3, $4) ON CONFLICT (id) DO UPDATE SET \
         membership = host_identities.membership + 1, joined_at_us = excluded.joined_at_us, \
         expires_at_us = excluded.expires_at_us, removed_at_us = NULL \
         RETURNING id, role, membership, joined_at_us, expires_at_us, removed_at_us",
    )
    .bind(host.as_str())
    .bind(role.as_str())
    .bind(at.as_microsecond())
    .bind(expires_at.as_microsecond())
    .fetch_one(write.conn())
    .await?;
    row.try_into()
}
