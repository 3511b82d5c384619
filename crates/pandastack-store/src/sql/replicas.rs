//! Replicas: sessions on PostgreSQL, and the one server of a SQLite file.
//!
//! | fact | is |
//! |---|---|
//! | a replica lives | its session holds the advisory lock (`MEMBER_CLASS`, its number) |
//! | a replica leads | its session holds the advisory lock `LEADER_LOCK` |
//! | something changed | a notification on `CHANNEL`, sent by triggers and delivered in the order of commits |
//!
//! Notifications name what changed and do not carry it: they are short by the protocol's rules,
//! events are not.

use std::collections::HashSet;

use async_trait::async_trait;
use pandastack_types::api::Event;
use sqlx::postgres::PgListener;
use sqlx::{AnyConnection, AnyPool};

use super::rows::{EventRow, id};
use super::{Backend, SqlStore, corrupt};
use crate::Result;
use crate::replicas::{Replica, ReplicaChange, ReplicaStore, Session};

/// The lock of the leader among the database's advisory locks: "pandasta" in ASCII. Servers from
/// before there were replicas held it for as long as they ran, so one of those and a leader exclude
/// each other.
const LEADER_LOCK: i64 = 0x7061_6e64_6173_7461;
/// The class of the locks of members: "pand" in ASCII.
const MEMBER_CLASS: i32 = 0x7061_6e64;
/// The channel on which replicas receive changes. The triggers of the schema use it too.
pub(super) const CHANNEL: &str = "pandastack";
/// Notifications taken at once, so that a burst of events is read with one query.
const NEWS_AT_ONCE: usize = 256;
/// The database detects a vanished replica within 5 s, and releases its locks.
const SESSION_SETTINGS: &str =
    "SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3";

/// Query for the replicas that are alive. The session of a member that leads holds both locks.
const REPLICAS: &str = "SELECT r.instance, r.address, EXISTS (SELECT 1 FROM pg_locks lead \
     WHERE lead.locktype = 'advisory' AND lead.database = member.database AND lead.objsubid = 1 AND lead.granted \
     AND (lead.classid::bigint << 32) + lead.objid::bigint = $2 AND lead.pid = member.pid) AS leads \
     FROM replicas r JOIN pg_locks member ON member.locktype = 'advisory' AND member.granted \
     AND member.objsubid = 2 AND member.classid::bigint = $1 AND member.objid::bigint = r.number \
     AND member.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY r.number";

/// Notification that the policy for the shared secret changed.
pub(super) const SHARED_SECRET_CHANGED: &str = "shared-secret";

#[async_trait]
impl ReplicaStore for SqlStore {
    async fn join(&self, instance: &str, address: &str) -> Result<Box<dyn Session>> {
        match &self.backend {
            Backend::Sqlite(_) => Ok(Box::new(SoleReplica)),
            Backend::Postgres(postgres) => {
                let session = PostgresSession::open(postgres.url(), self.readers.clone());
                let mut session = session.await?;
                session.join(instance, address).await?;
                Ok(Box::new(session))
            }
        }
    }

    async fn replicas(&self) -> Result<Vec<Replica>> {
        match &self.backend {
            Backend::Sqlite(_) => Ok(Vec::new()),
            Backend::Postgres(_) => {
                let rows: Vec<(String, String, bool)> = sqlx::query_as(REPLICAS)
                    .bind(i64::from(MEMBER_CLASS))
                    .bind(LEADER_LOCK)
                    .fetch_all(&self.readers)
                    .await?;
                let replica = |(instance, address, leads)| Replica { instance, address, leads };
                Ok(rows.into_iter().map(replica).collect())
            }
        }
    }

    async fn notify_names_changed(&self) -> Result<()> {
        if self.publishes_changes() {
            let told = sqlx::query("SELECT pg_notify($1, 'names')").bind(CHANNEL).execute(&self.readers);
            told.await?;
        }
        Ok(())
    }

    fn publishes_changes(&self) -> bool {
        matches!(self.backend, Backend::Postgres(_))
    }
}

/// Returns whether another replica of that name is alive, as seen from within a write.
pub(super) async fn is_alive(connection: &mut AnyConnection, instance: &str) -> Result<bool> {
    let found: Vec<(String, String, bool)> = sqlx::query_as(REPLICAS)
        .bind(i64::from(MEMBER_CLASS))
        .bind(LEADER_LOCK)
        .fetch_all(connection)
        .await?;
    Ok(found.iter().any(|(name, ..)| name == instance))
}

/// The only server of a database file.
struct SoleReplica;

#[async_trait]
impl Session for SoleReplica {
    async fn beat(&mut self) -> Result<bool> {
        Ok(true)
    }

    async fn next_changes(&mut self) -> Result<Vec<ReplicaChange>> {
        std::future::pending().await
    }

    async fn leave(&mut self) {}
}

struct PostgresSession {
    /// The replica's one connection, which holds the locks and receives the notifications.
    listener: PgListener,
    readers: AnyPool,
    leads: bool,
    /// Heard, and not handed on yet.
    heard: Vec<String>,
}

impl PostgresSession {
    async fn open(url: &str, readers: AnyPool) -> Result<Self> {
        let mut listener = PgListener::connect(url).await?;
        // A connection made again in secret would not have the locks.
        listener.eager_reconnect(false);
        sqlx::raw_sql(SESSION_SETTINGS).execute(&mut listener).await?;
        listener.listen(CHANNEL).await?;
        Ok(Self { listener, readers, leads: false, heard: Vec::new() })
    }

    /// Appears among the replicas in one step: the row is never visible without the lock.
    async fn join(&mut self, instance: &str, address: &str) -> Result<()> {
        let mut tx = sqlx::Acquire::begin(&mut self.listener).await?;
        let number: i32 =
            sqlx::query_scalar("INSERT INTO replicas (instance, address) VALUES ($1, $2) RETURNING number")
                .bind(instance)
                .bind(address)
                .fetch_one(&mut *tx)
                .await?;
        sqlx::query("SELECT pg_advisory_lock($1, $2)")
            .bind(MEMBER_CLASS)
            .bind(number)
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// Deletes rows of replicas that have ended.
    async fn forget_dead(&mut self) -> Result<()> {
        let forgotten = sqlx::query(
            "DELETE FROM replicas WHERE number NOT IN (SELECT objid::bigint FROM pg_locks \
             WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = $1)",
        );
        forgotten.bind(i64::from(MEMBER_CLASS)).execute(&mut self.listener).await?;
        Ok(())
    }

    /// The events of those numbers, in their order.
    async fn events(&self, numbers: &[i64]) -> Result<Vec<ReplicaChange>> {
        let (Some(first), Some(last)) = (numbers.iter().min(), numbers.iter().max()) else {
            return Ok(Vec::new());
        };
        let rows: Vec<OwnedEventRow> = sqlx::query_as(
            "SELECT workspace_id, id, sandbox_id, kind, at_us, detail FROM events \
             WHERE id BETWEEN $1 AND $2 ORDER BY id",
        )
        .bind(first)
        .bind(last)
        .fetch_all(&self.readers)
        .await?;
        let wanted: HashSet<_> = numbers.iter().copied().collect();
        let mut changes = Vec::new();
        for row in rows {
            let (workspace, event) = (id(row.workspace_id)?, Event::try_from(row.event)?);
            if wanted.contains(&event.id) {
                changes.push(ReplicaChange::Event(workspace, event));
            }
        }
        Ok(changes)
    }
}

/// An event, and whose it is.
#[derive(sqlx::FromRow)]
struct OwnedEventRow {
    workspace_id: String,
    #[sqlx(flatten)]
    event: EventRow,
}

#[async_trait]
impl Session for PostgresSession {
    async fn beat(&mut self) -> Result<bool> {
        if self.leads {
            sqlx::query("SELECT 1").execute(&mut self.listener).await?;
            return Ok(true);
        }
        let tried = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(LEADER_LOCK);
        self.leads = tried.fetch_one(&mut self.listener).await?;
        if self.leads {
            self.forget_dead().await?;
        }
        Ok(self.leads)
    }

    async fn next_changes(&mut self) -> Result<Vec<ReplicaChange>> {
        // Received changes stay here until they are handed on, because the caller may stop waiting
        // at any await.
        if self.heard.is_empty() {
            let first = self.listener.try_recv().await?;
            let lost = || sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into());
            self.heard.push(first.ok_or_else(lost)?.payload().to_owned());
        }
        while self.heard.len() < NEWS_AT_ONCE
            && let Some(next) = self.listener.next_buffered()
        {
            self.heard.push(next.payload().to_owned());
        }
        let news = self.read().await?;
        self.heard.clear();
        Ok(news)
    }

    async fn leave(&mut self) {
        let unlocked = sqlx::query("SELECT pg_advisory_unlock_all()").execute(&mut self.listener).await;
        if let Err(error) = unlocked {
            tracing::debug!(%error, "the session was lost before it was closed");
        }
    }
}

impl PostgresSession {
    /// Received changes, without duplicates.
    async fn read(&self) -> Result<Vec<ReplicaChange>> {
        let mut numbers = Vec::new();
        let mut others: Vec<ReplicaChange> = Vec::new();
        for payload in &self.heard {
            let news = match payload.split_once(' ') {
                Some(("event", number)) => {
                    numbers.push(number.parse().map_err(corrupt("notification"))?);
                    continue;
                }
                Some(("host", id)) => ReplicaChange::Host(id.parse().map_err(corrupt("notification"))?),
                Some(("identity", id)) => {
                    ReplicaChange::HostIdentity(id.parse().map_err(corrupt("notification"))?)
                }
                _ if payload == SHARED_SECRET_CHANGED => ReplicaChange::SharedSecret,
                _ if payload == "names" => ReplicaChange::Names,
                // From a newer version; ignore it.
                _ => continue,
            };
            if !others.contains(&news) {
                others.push(news);
            }
        }
        let events = self.events(&numbers).await?;
        Ok(events.into_iter().chain(others).collect())
    }
}
