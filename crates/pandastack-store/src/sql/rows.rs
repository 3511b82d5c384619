//! Rows as SQLite returns them, and their way to the records of [`crate::record`].

use jiff::Timestamp;
use pandastack_types::SandboxState;
use pandastack_types::api::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::corrupt;
use super::seal::sealed_row;
use crate::volumes::{VolumeHolderRecord, VolumeRecord, VolumeState};
use crate::{HostRecord, Result, SandboxRecord, SessionRecord, SnapshotRecord, StoreError, TokenRecord};

pub(super) fn time(us: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(us).map_err(corrupt("time"))
}

pub(super) fn times(us: Option<i64>) -> Result<Option<Timestamp>> {
    us.map(time).transpose()
}

pub(super) fn to_json(what: &'static str, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(corrupt(what))
}

pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(corrupt(what))
}

pub(super) fn id<T: std::str::FromStr<Err = pandastack_types::IdError>>(text: String) -> Result<T> {
    text.parse().map_err(corrupt("id"))
}

/// Incarnations are small counters; SQLite's integers are signed.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(super) fn state(text: &str) -> Result<SandboxState> {
    SandboxState::parse(text).ok_or_else(|| StoreError::Corrupt {
        what: "sandbox state",
        source: format!("`{text}` is not a state").into(),
    })
}

#[derive(sqlx::FromRow)]
pub(super) struct SandboxRow {
    id: String,
    workspace_id: String,
    host_id: String,
    state: String,
    incarnation: i64,
    template: String,
    parent_id: Option<String>,
    tree_id: Option<String>,
    owner: Option<String>,
    created_at_us: i64,
    changed_at_us: i64,
    expires_at_us: Option<i64>,
    metadata: String,
    spec: String,
}

sealed_row!(SandboxRow, SANDBOXES);

impl TryFrom<SandboxRow> for SandboxRecord {
    type Error = StoreError;
    fn try_from(row: SandboxRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            host: id(row.host_id)?,
            state: state(&row.state)?,
            incarnation: unsigned(row.incarnation),
            template: row.template,
            parent: row.parent_id.map(id).transpose()?,
            tree: row.tree_id.map(id).transpose()?,
            owner: row.owner.map(|text| text.parse().map_err(corrupt("owner"))).transpose()?,
            created_at: time(row.created_at_us)?,
            changed_at: time(row.changed_at_us)?,
            expires_at: times(row.expires_at_us)?,
            metadata: from_json("sandbox metadata", &row.metadata)?,
            spec: from_json("sandbox spec", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct SnapshotRow {
    id: String,
    workspace_id: String,
    sandbox_id: String,
    host_id: String,
    created_at_us: i64,
    expires_at_us: Option<i64>,
    spec: String,
}

sealed_row!(SnapshotRow, SNAPSHOTS);

impl TryFrom<SnapshotRow> for SnapshotRecord {
    type Error = StoreError;
    fn try_from(row: SnapshotRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            sandbox: id(row.sandbox_id)?,
            host: id(row.host_id)?,
            created_at: time(row.created_at_us)?,
            expires_at: times(row.expires_at_us)?,
            spec: from_json("snapshot spec", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct TokenRow {
    prefix: String,
    workspace_id: String,
    hash: Vec<u8>,
    label: String,
    role: String,
    operator: i64,
    allow_from: Option<String>,
    created_at_us: i64,
    expires_at_us: Option<i64>,
    last_used_at_us: Option<i64>,
    member_id: Option<String>,
    client: Option<String>,
}

impl TryFrom<TokenRow> for TokenRecord {
    type Error = StoreError;
    fn try_from(row: TokenRow) -> Result<Self> {
        Ok(Self {
            prefix: row.prefix,
            workspace: id(row.workspace_id)?,
            hash: row.hash,
            label: row.label,
            role: row.role.parse().map_err(corrupt("key role"))?,
            operator: row.operator == 1,
            allow_from: match &row.allow_from {
                Some(text) => from_json("networks of a key", text)?,
                None => Vec::new(),
            },
            created_at: time(row.created_at_us)?,
            expires_at: times(row.expires_at_us)?,
            last_used_at: times(row.last_used_at_us)?,
            session: match row.member_id {
                Some(member) => {
                    Some(SessionRecord { member: id(member)?, client: row.client.unwrap_or_default() })
                }
                None => None,
            },
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct HostRow {
    summary: String,
    last_seen_at_us: i64,
}

impl TryFrom<HostRow> for HostRecord {
    type Error = StoreError;
    fn try_from(row: HostRow) -> Result<Self> {
        Ok(Self {
            summary: from_json("host summary", &row.summary)?,
            last_seen_at: time(row.last_seen_at_us)?,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct EventRow {
    id: i64,
    sandbox_id: String,
    kind: String,
    at_us: i64,
    detail: Option<String>,
}

impl TryFrom<EventRow> for Event {
    type Error = StoreError;
    fn try_from(row: EventRow) -> Result<Self> {
        Ok(Self {
            id: row.id,
            sandbox_id: id(row.sandbox_id)?,
            event_type: row.kind.clone(),
            kind: row.kind,
            at: time(row.at_us)?,
            detail: row.detail,
        })
    }
}

/// All rows as records.
pub(super) fn records<R, T: TryFrom<R, Error = StoreError>>(rows: Vec<R>) -> Result<Vec<T>> {
    rows.into_iter().map(T::try_from).collect()
}

#[derive(sqlx::FromRow)]
pub(super) struct VolumeRow {
    id: String,
    workspace_id: String,
    name: String,
    host_id: String,
    state: String,
    generation: i64,
    created_at_us: i64,
    spec: String,
}

impl TryFrom<VolumeRow> for VolumeRecord {
    type Error = StoreError;

    fn try_from(row: VolumeRow) -> Result<Self> {
        let unknown = || StoreError::Corrupt {
            what: "volume state",
            source: format!("`{}` is not a state", row.state).into(),
        };
        Ok(VolumeRecord {
            state: VolumeState::parse(&row.state).ok_or_else(unknown)?,
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            name: row.name,
            host: id(row.host_id)?,
            generation: unsigned(row.generation),
            created_at: time(row.created_at_us)?,
            spec: from_json("volume spec", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct VolumeHolderRow {
    volume_id: String,
    sandbox_id: String,
    read_only: i64,
}

impl TryFrom<VolumeHolderRow> for VolumeHolderRecord {
    type Error = StoreError;

    fn try_from(row: VolumeHolderRow) -> Result<Self> {
        Ok(VolumeHolderRecord {
            volume: id(row.volume_id)?,
            sandbox: id(row.sandbox_id)?,
            read_only: row.read_only != 0,
        })
    }
}
