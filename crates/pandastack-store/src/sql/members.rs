//! Members and their sessions.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::Role;
use pandastack_types::limits::{MEMBERS_PER_WORKSPACE_MAX, SESSIONS_PER_MEMBER_MAX};
use pandastack_types::{MemberId, WorkspaceId};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::quotas::admit_any;
use super::rows::{TokenRow, id, records, time, times, unsigned};
use super::{SqlStore, corrupt, tokens};
use crate::members::{Identity, MemberRecord, MemberStore};
use crate::{Durability, Result, StoreError, TokenRecord};

/// Appended to what selects members.
const COLUMNS: &str = "SELECT id, workspace_id, issuer, subject, email, name, role, group_role, operator, \
     created_at_us, last_sign_in_at_us FROM members";

#[derive(sqlx::FromRow)]
struct MemberRow {
    id: String,
    workspace_id: String,
    issuer: Option<String>,
    subject: Option<String>,
    email: Option<String>,
    name: Option<String>,
    role: Option<String>,
    group_role: Option<String>,
    operator: i64,
    created_at_us: i64,
    last_sign_in_at_us: Option<i64>,
}

impl TryFrom<MemberRow> for MemberRecord {
    type Error = StoreError;
    fn try_from(row: MemberRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            identity: row.issuer.zip(row.subject).map(|(issuer, subject)| Identity { issuer, subject }),
            email: row.email,
            name: row.name,
            role: role(row.role)?,
            group_role: role(row.group_role)?,
            operator: row.operator == 1,
            created_at: time(row.created_at_us)?,
            last_sign_in_at: times(row.last_sign_in_at_us)?,
        })
    }
}

fn role(text: Option<String>) -> Result<Option<Role>> {
    text.map(|text| text.parse().map_err(corrupt("member role"))).transpose()
}

#[async_trait]
impl MemberStore for SqlStore {
    async fn insert_member(&self, member: &MemberRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&member.workspace).await?;
        admit_any(write.conn(), &member.workspace).await?;
        let (issuer, subject) = identity(member);
        let same: Option<i64> = sqlx::query_scalar(
            "SELECT 1 FROM members WHERE workspace_id = $1 \
             AND (email = $2 OR (issuer = $3 AND subject = $4)) LIMIT 1",
        )
        .bind(member.workspace.as_str())
        .bind(member.email.as_deref())
        .bind(issuer)
        .bind(subject)
        .fetch_optional(write.conn())
        .await?;
        if same.is_some() {
            let name = member.email.as_deref().or(subject).unwrap_or_default();
            return Err(StoreError::Held(format!("`{name}` is already a member of this workspace")));
        }
        admit(write.conn(), &member.workspace).await?;
        put(write.conn(), INSERT, member).await?;
        write.commit().await
    }

    async fn members(&self, workspace: &WorkspaceId) -> Result<Vec<MemberRecord>> {
        let of_workspace =
            AssertSqlSafe(format!("{COLUMNS} WHERE workspace_id = $1 ORDER BY created_at_us, id"));
        let rows: Vec<MemberRow> =
            sqlx::query_as(of_workspace).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn member(&self, workspace: &WorkspaceId, id: &MemberId) -> Result<MemberRecord> {
        let mut connection = self.readers.acquire().await?;
        find(&mut connection, workspace, id).await
    }

    async fn members_of(&self, identity: &Identity, email: Option<&str>) -> Result<Vec<MemberRecord>> {
        let of_person = AssertSqlSafe(format!(
            "{COLUMNS} WHERE (issuer = $1 AND subject = $2) OR (subject IS NULL AND email = $3) \
             ORDER BY workspace_id, created_at_us"
        ));
        let rows: Vec<MemberRow> = sqlx::query_as(of_person)
            .bind(&identity.issuer)
            .bind(&identity.subject)
            .bind(email)
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn set_member_role(
        &self,
        workspace: &WorkspaceId,
        id: &MemberId,
        role: Role,
    ) -> Result<MemberRecord> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        let member = MemberRecord { role: Some(role), ..find(write.conn(), workspace, id).await? };
        update(write.conn(), &member).await?;
        write.commit().await?;
        Ok(member)
    }

    async fn update_member(&self, member: &MemberRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&member.workspace).await?;
        admit_any(write.conn(), &member.workspace).await?;
        let changed = || StoreError::Held("the member was changed during the sign-in; try again".to_owned());
        if !update(write.conn(), member).await? {
            // A new person gets a row; a removed row is not added again.
            if member.role.is_some() {
                return Err(changed());
            }
            admit(write.conn(), &member.workspace).await?;
            if !put(write.conn(), INSERT, member).await? {
                return Err(changed());
            }
        }
        write.commit().await
    }

    async fn delete_member(&self, workspace: &WorkspaceId, id: &MemberId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        find(write.conn(), workspace, id).await?;
        for statement in ["DELETE FROM tokens WHERE member_id = $1", "DELETE FROM members WHERE id = $1"] {
            sqlx::query(statement).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await
    }

    async fn insert_session(&self, session: &TokenRecord) -> Result<TokenRecord> {
        let none = || StoreError::NotFound { what: "member", id: session.label.clone() };
        let of = session.session.as_ref().ok_or_else(none)?;
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&session.workspace).await?;
        admit_any(write.conn(), &session.workspace).await?;
        let member = find(write.conn(), &session.workspace, &of.member).await?;
        let role = member.effective_role().ok_or_else(none)?;
        let session = TokenRecord { role, operator: member.operator, ..session.clone() };
        tokens::insert(write.conn(), &session).await?;
        sqlx::query(
            "DELETE FROM tokens WHERE prefix IN (SELECT prefix FROM (SELECT prefix, ROW_NUMBER() OVER \
             (ORDER BY created_at_us DESC, prefix) AS place FROM tokens WHERE member_id = $1) AS placed \
             WHERE place > $2)",
        )
        .bind(of.member.as_str())
        .bind(i64::from(SESSIONS_PER_MEMBER_MAX))
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(session)
    }

    async fn sessions(&self, workspace: &WorkspaceId) -> Result<Vec<TokenRecord>> {
        let of_workspace = AssertSqlSafe(format!(
            "{} WHERE workspace_id = $1 AND member_id IS NOT NULL ORDER BY created_at_us DESC, prefix",
            tokens::COLUMNS
        ));
        let rows: Vec<TokenRow> =
            sqlx::query_as(of_workspace).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn delete_session(&self, workspace: &WorkspaceId, prefix: &str) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let session = "DELETE FROM tokens WHERE workspace_id = $1 AND prefix = $2 AND member_id IS NOT NULL";
        let done = sqlx::query(session).bind(workspace.as_str()).bind(prefix).execute(write.conn()).await?;
        if done.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "session", id: prefix.to_owned() });
        }
        write.commit().await
    }

    async fn prune_sessions(&self, at: Timestamp) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let done = sqlx::query("DELETE FROM tokens WHERE member_id IS NOT NULL AND expires_at_us <= $1")
            .bind(at.as_microsecond())
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(done.rows_affected())
    }
}

fn identity(member: &MemberRecord) -> (Option<&str>, Option<&str>) {
    let identity = member.identity.as_ref();
    identity.map(|identity| (identity.issuer.as_str(), identity.subject.as_str())).unzip()
}

async fn find(conn: &mut AnyConnection, workspace: &WorkspaceId, id: &MemberId) -> Result<MemberRecord> {
    let by_id = AssertSqlSafe(format!("{COLUMNS} WHERE workspace_id = $1 AND id = $2"));
    let row: Option<MemberRow> =
        sqlx::query_as(by_id).bind(workspace.as_str()).bind(id.as_str()).fetch_optional(conn).await?;
    row.ok_or_else(|| StoreError::NotFound { what: "member", id: id.to_string() })?.try_into()
}

/// Refuses one member more than a workspace may have.
async fn admit(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM members WHERE workspace_id = $1")
        .bind(workspace.as_str())
        .fetch_one(conn)
        .await?;
    match unsigned(count) >= MEMBERS_PER_WORKSPACE_MAX {
        true => Err(StoreError::Quota { what: "members", limit: MEMBERS_PER_WORKSPACE_MAX }),
        false => Ok(()),
    }
}

/// Adds a row; does nothing if the person has one in this workspace. Has the same parameters as
/// [`put`].
const INSERT: &str = "INSERT INTO members (id, workspace_id, issuer, subject, email, name, role, group_role, \
     operator, created_at_us, last_sign_in_at_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
     ON CONFLICT DO NOTHING";
/// Replaces a row.
const UPDATE: &str = "UPDATE members SET issuer = $3, subject = $4, email = $5, name = $6, role = $7, \
     group_role = $8, operator = $9, created_at_us = $10, last_sign_in_at_us = $11 \
     WHERE id = $1 AND workspace_id = $2";

/// Writes a row; `false` if nothing changed.
async fn put(conn: &mut AnyConnection, statement: &'static str, member: &MemberRecord) -> Result<bool> {
    let (issuer, subject) = identity(member);
    let done = sqlx::query(statement)
        .bind(member.id.as_str())
        .bind(member.workspace.as_str())
        .bind(issuer)
        .bind(subject)
        .bind(member.email.as_deref())
        .bind(member.name.as_deref())
        .bind(member.role.map(Role::as_str))
        .bind(member.group_role.map(Role::as_str))
        .bind(i64::from(member.operator))
        .bind(member.created_at.as_microsecond())
        .bind(member.last_sign_in_at.map(Timestamp::as_microsecond))
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Changes a row and the rights of its sessions; `false` if the row does not exist.
async fn update(conn: &mut AnyConnection, member: &MemberRecord) -> Result<bool> {
    let is_there = put(&mut *conn, UPDATE, member).await?;
    if let Some(role) = member.effective_role() {
        sqlx::query("UPDATE tokens SET role = $1, operator = $2 WHERE member_id = $3")
            .bind(role.as_str())
            .bind(i64::from(member.operator))
            .bind(member.id.as_str())
            .execute(conn)
            .await?;
    }
    Ok(is_there)
}
