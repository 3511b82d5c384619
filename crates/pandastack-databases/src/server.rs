//! SQL statements that run as the server's administrator.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_postgres::{
    Backend, Bounds, ConnectError, Credentials, Databases, Endpoint, Listener, LoginError, Outcome, RunError,
    Session, SqlError, Statement, scram_verifier,
};
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::api::DatabaseStats;
use pandastack_types::{DatabaseId, Error, ErrorCode, Result, SandboxId};

use crate::connector::{MachineConnector, connect_first};
use crate::credentials::{ADMINISTRATOR, DATABASE, TENANT, administrator, password, tenant};
use crate::service::ManagedDatabases;
use crate::{machines, shell};

/// Longest duration of one of these conversations. The machine is awake or waking.
const WAIT: Duration = Duration::from_secs(30);
/// Longest time for a server to write everything out and stop.
const STOP_SECONDS: u64 = 300;
/// Ends sessions and rolls back uncommitted transactions.
const STOP: &str = "runuser -u postgres -- /opt/postgres/16/bin/pg_ctl --pgdata=/var/lib/postgresql/data --silent -w -t 290 -m fast stop && sync";
/// Sessions of others, in a copy: their clients are connected to the original.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
const STATS: &str = "SELECT sum(pg_database_size(datname))::bigint, \
     (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
     (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()), \
     current_setting('max_connections')::int, sum(xact_commit)::bigint, sum(xact_rollback)::bigint, \
     coalesce(100 * sum(blks_hit) / nullif(sum(blks_hit) + sum(blks_read), 0), 100)::int, \
     current_setting('server_version') FROM pg_stat_database WHERE datname IS NOT NULL";

/// The template's program that watches the volume marks a full disk with a file.
const IS_FULL: &str = "SELECT (pg_stat_file('/run/postgresql/room.conf', true)).size IS NOT NULL";

/// Query for the last password reset that a server applied: a comment on the administrator's role,
/// which only the administrator can change.
const RECORDED_REVISION: &str = "SELECT shobj_description('pandastack'::regrole, 'pg_authid')";

/// Origin of a new machine's server, which still has that origin's administrator.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The template.
    Template,
    /// A copy of this database.
    Copy(&'a DatabaseId),
}

/// Sets a new server's own passwords, then runs a query: on a server from the template as its user,
/// on a copy as its administrator, because the user's rights there are up to the original's owner.
pub(super) async fn set_up(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
    descent: Origin<'_>,
) -> Result<()> {
    let own = administrator(&databases.link, Some(&record.id)).password;
    let passwords = set_passwords(&[(ADMINISTRATOR, &own), (TENANT, &password(&databases.link, record))]);
    match descent {
        Origin::Template => begin(databases, sandbox, &[passwords]).await?,
        Origin::Copy(original) => {
            let statements = [statement(END_SESSIONS), passwords];
            run_as(databases, sandbox, &administrator(&databases.link, Some(original)), &statements)
                .await
                .map(drop)?;
            return check_answers(databases, &administrator(&databases.link, Some(&record.id)), sandbox)
                .await;
        }
    }
    check_answers(databases, &tenant(&databases.link, record, DATABASE), sandbox).await
}

/// The first words to a template's server, in the session that waits for them. If no session waits,
/// one is opened.
async fn begin(
    databases: &Arc<ManagedDatabases>,
    sandbox: &SandboxId,
    statements: &[Statement],
) -> Result<()> {
    let waiting = connect_first(databases, sandbox).await.map_err(|error| login_error(error.into()))?;
    match waiting {
        Some(backend) => run_in(Session::resumed(backend), statements).await.map(drop).map_err(run_error),
        None => run_as(databases, sandbox, &administrator(&databases.link, None), statements).await.map(drop),
    }
}

/// The first statements on a revived server. They must not depend on anything a tenant can change:
/// the tenant's password, or whether its database exists and accepts connections.
pub(super) async fn resume(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<()> {
    if record.spec.reset_pending {
        renew_password(databases, record, sandbox).await?;
    }
    check_answers(databases, &administrator(&databases.link, Some(&record.id)), sandbox).await
}

async fn check_answers(
    databases: &Arc<ManagedDatabases>,
    who: &Credentials,
    sandbox: &SandboxId,
) -> Result<()> {
    let first = run_as(databases, sandbox, who, &[statement("SELECT 1")]).await?;
    match first.first().and_then(|outcome| outcome.rows.first()?.first()?.as_deref()) {
        Some("1") => Ok(()),
        other => Err(Error::internal(format!("a database answered {other:?} to SELECT 1"))),
    }
}

/// Sets the tenant's password to the recorded one, and records its version in the server. Both or neither:
/// statements that are sent at once are one transaction.
pub(super) async fn renew_password(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<()> {
    let statements =
        [set_passwords(&[(TENANT, &password(&databases.link, record))]), statement(&comment(record))];
    run_as(databases, sandbox, &administrator(&databases.link, Some(&record.id)), &statements).await.map(drop)
}

/// Records in a server the last reset that it applied, unless it already has a record of its own.
pub(super) async fn record_revision(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<()> {
    let who = administrator(&databases.link, Some(&record.id));
    run_as(databases, sandbox, &who, &[statement(&record_if_absent(record))]).await.map(drop)
}

/// The last reset that a server applied; 0 if none.
pub(super) async fn recorded_revision(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<u64> {
    let who = administrator(&databases.link, Some(&record.id));
    let outcomes = run_as(databases, sandbox, &who, &[statement(RECORDED_REVISION)]).await?;
    let comment = outcomes.first().and_then(|outcome| outcome.rows.first()?.first()?.as_deref());
    Ok(comment.and_then(|comment| parse_revision(comment, &record.id)).unwrap_or(0))
}

/// Names the database too: a copy has its original's note, and counts from the start.
fn revision_note(record: &DatabaseRecord) -> String {
    format!("{} {}", record.id, record.spec.revision)
}

fn comment(record: &DatabaseRecord) -> String {
    format!("COMMENT ON ROLE {ADMINISTRATOR} IS '{}'", revision_note(record))
}

/// A single statement, because a concurrent reset writes a newer note.
fn record_if_absent(record: &DatabaseRecord) -> String {
    let (id, comment) = (&record.id, comment(record));
    format!(
        "DO $$ BEGIN IF NOT starts_with(coalesce(({RECORDED_REVISION}), ''), '{id} ') THEN {comment}; END IF; END $$"
    )
}

fn parse_revision(comment: &str, id: &DatabaseId) -> Option<u64> {
    comment.strip_prefix(id.as_str())?.strip_prefix(' ')?.parse().ok()
}

/// Stops the server of a database cleanly: everything is on its volume. Wakes it.
pub(super) async fn stop(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<()> {
    let machine = machines::machine(databases, record).await?;
    let stopped = shell::run(&machine, STOP, &[], STOP_SECONDS).await?;
    match stopped.exit_code {
        0 => Ok(()),
        _ => Err(Error::internal(format!("PostgreSQL did not stop: {}", stopped.stderr.trim()))),
    }
}

/// Returns whether the volume is so full that the server is read-only. The caller connects, and so
/// decides whether this counts as use.
pub(super) async fn is_full(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    backend: Backend,
) -> Result<bool> {
    let session =
        Session::over(backend, &administrator(&databases.link, Some(id))).await.map_err(login_error)?;
    let outcomes = run_in(session, &[statement(IS_FULL)]).await.map_err(run_error)?;
    let answer = outcomes.first().and_then(|outcome| outcome.rows.first()?.first()?.clone());
    Ok(answer.as_deref() == Some("t"))
}

/// Runs statements in an open session, and closes it. A slow statement is not cancelled: the
/// connection is closed anyway.
pub(super) async fn run_in(mut session: Session, statements: &[Statement]) -> Result<Vec<Outcome>, RunError> {
    let endpoint = Endpoint { database: String::new(), listener: Listener::Direct };
    let bounds = Bounds { rows_max: 0, wait: WAIT };
    let outcomes = session.run(&NoDatabase, &endpoint, statements, None, bounds).await;
    session.close().await;
    outcomes
}

/// Finds no database, for sessions that never reconnect.
struct NoDatabase;

#[async_trait]
impl Databases for NoDatabase {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        Err(ConnectError::Unknown(endpoint.database.clone()))
    }
}

/// Reads a server's statistics.
pub(super) async fn stats(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    sandbox: &SandboxId,
) -> Result<DatabaseStats> {
    let outcomes =
        run_as(databases, sandbox, &administrator(&databases.link, Some(&record.id)), &[statement(STATS)])
            .await?;
    let row = outcomes.into_iter().next().and_then(|outcome| outcome.rows.into_iter().next());
    let row = row.ok_or_else(|| Error::internal("a server has no statistics"))?;
    let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
    let number = |at| text(at).parse::<u64>().unwrap_or(0);
    let small = |at| u32::try_from(number(at)).unwrap_or(u32::MAX);
    Ok(DatabaseStats {
        size_bytes: number(0),
        connections: small(1),
        active: small(2),
        connections_max: small(3),
        commits: number(4),
        rollbacks: number(5),
        cache_hit_percent: small(6),
        version: text(7).to_owned(),
        storage_bytes: 0,
        storage_used_bytes: 0,
    })
}

pub(super) fn statement(sql: &str) -> Statement {
    Statement { sql: sql.to_owned(), parameters: Vec::new() }
}

/// Verifiers go over the wire, not passwords: the server's log could show those. They are written
/// to the catalog, because `ALTER ROLE` tries the empty password against each, which takes an
/// emulated machine longer than all the rest of a create.
fn set_passwords(passwords: &[(&str, &str)]) -> Statement {
    let values: Vec<String> =
        (0..passwords.len()).map(|n| format!("(${}, ${})", 2 * n + 1, 2 * n + 2)).collect();
    let sql = format!(
        "UPDATE pg_authid SET rolpassword = new.verifier FROM (VALUES {}) AS new (role, verifier) WHERE rolname = new.role",
        values.join(", ")
    );
    let pair = |(role, password): &(&str, &str)| [Some((*role).to_owned()), Some(scram_verifier(password))];
    Statement { sql, parameters: passwords.iter().flat_map(pair).collect() }
}

async fn run_as(
    databases: &Arc<ManagedDatabases>,
    sandbox: &SandboxId,
    credentials: &Credentials,
    statements: &[Statement],
) -> Result<Vec<Outcome>> {
    let (machine, endpoint) = one_machine(databases, sandbox);
    let mut session = Session::open(&machine, &endpoint, credentials).await.map_err(login_error)?;
    let bounds = Bounds { rows_max: 0, wait: WAIT };
    let outcomes = session.run(&machine, &endpoint, statements, None, bounds).await;
    session.close().await;
    outcomes.map_err(run_error)
}

fn one_machine(databases: &Arc<ManagedDatabases>, sandbox: &SandboxId) -> (MachineConnector, Endpoint) {
    let machine = MachineConnector { databases: Arc::clone(databases), sandbox: sandbox.clone() };
    (machine, Endpoint { database: sandbox.to_string(), listener: Listener::Direct })
}

/// Converts a failed login to an API error.
pub(super) fn login_error(error: LoginError) -> Error {
    match error {
        LoginError::Sql(error) => sql_error(&error),
        LoginError::Connect(_) | LoginError::Late | LoginError::Broken(_) => {
            Error::new(ErrorCode::GuestUnavailable, pandastack_types::chain(&error))
        }
    }
}

/// Converts an error that the server reported. A transient error is not the caller's mistake.
fn sql_error(error: &SqlError) -> Error {
    let more = [error.field('D'), error.field('H')].into_iter().flatten();
    let more: String = more.map(|sentence| format!(". {sentence}")).collect();
    let code = if error.is_passing() { ErrorCode::Unavailable } else { ErrorCode::BadRequest };
    Error::new(code, format!("{error}{more}"))
}

/// Converts failed statements to an API error.
pub(super) fn run_error(error: RunError) -> Error {
    match error {
        RunError::Session(error) => login_error(error),
        RunError::TooLarge => Error::new(ErrorCode::BodyTooLarge, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_of_another_database_is_ignored() {
        let id: DatabaseId = "a1".parse().unwrap();
        for (comment, expect) in
            [("a1 3", Some(3)), ("a1 0", Some(0)), ("b2 3", None), ("a12 3", None), ("a1", None), ("", None)]
        {
            assert_eq!(parse_revision(comment, &id), expect, "{comment}");
        }
    }

    #[test]
    fn transient_sql_errors_are_retryable_and_mistakes_are_not() {
        for (sqlstate, status) in
            [("57P01", 503), ("57P03", 503), ("53300", 503), ("57014", 400), ("42P01", 400), ("28P01", 400)]
        {
            let error = SqlError { code: sqlstate.to_owned(), ..SqlError::default() };
            assert_eq!(run_error(error.clone().into()).code.status(), status, "{sqlstate}");
            assert_eq!(login_error(error.into()).code.status(), status, "{sqlstate}");
        }
    }

    #[test]
    fn passwords_are_set_in_one_statement_and_not_logged() {
        let statement = set_passwords(&[("a", "secret-a"), ("b", "secret-b")]);
        assert!(statement.sql.contains("(VALUES ($1, $2), ($3, $4))"), "{}", statement.sql);
        let values: Vec<String> = statement.parameters.into_iter().flatten().collect();
        assert_eq!((values[0].as_str(), values[2].as_str()), ("a", "b"));
        assert!(
            values[1].starts_with("SCRAM-SHA-256$4096:") && !values[1].contains("secret"),
            "{}",
            values[1]
        );
    }
}
