//! Waits for servers that replay WAL before they accept queries.
//!
//! Must hold: a replay is given up when it cannot end any more, not because one probe failed.
//! Giving up means a new machine, whose server starts again with the first file. And a machine that
//! replays is busy, so some of its logins are late.

use std::sync::Arc;
use std::time::Duration;

use pandastack_edge::EdgeError;
use pandastack_postgres::{Endpoint, Listener, LoginError, RunError, Session};
use pandastack_sandboxes::machine::Machine;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{DatabaseId, Error, Result, SandboxId};
use tokio::time::Instant;

use crate::credentials::administrator;
use crate::server::{login_error, run_error, run_in, statement};
use crate::service::ManagedDatabases;
use crate::{connector, shell};

/// Starts services that are not running, with the template's own program, and prints the reason if
/// that fails. That program waits ten minutes for the server and no longer. A server that has more
/// log to replay continues, as [`REPLAYING`] reports, and the rest is started beside it.
pub(super) const START: &str = "pandastack-postgres || { runuser -u postgres -- /opt/postgres/16/bin/pg_ctl \
     --pgdata=/var/lib/postgresql/data status > /dev/null && pandastack-postgres && echo replaying; } || \
     { tail -n 20 /var/log/postgresql/postgresql-*.log >&2; exit 1; }";
/// Printed by [`START`].
const REPLAYING: &str = "replaying";
/// Longest duration of that program, with its work beside waiting.
const START_SECONDS: u64 = 660;
/// Time that a server may replay its log after that before it counts as not started.
const REPLAY_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// Time without an answer to probes after which the machine counts as stuck. Until then no other
/// operation on the database runs, not even a failover.
const NO_ANSWER_MAX: Duration = Duration::from_secs(10 * 60);
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// SQLSTATE of a server that takes no sessions yet.
const NOT_YET: &str = "57P03";
/// SQLSTATE of a statement that took too long.
const CANCELLED: &str = "57014";
/// SQLSTATE of a session that ended with its server or its machine; the next probe shows which.
const ENDED: &str = "57P01";

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    /// The server takes queries and continues by itself.
    Over,
    /// The server reported that it still reads its log.
    InProgress,
    /// The server did not answer in time.
    NoAnswer,
}

/// Reason why a probe got no response.
#[derive(Debug)]
enum ProbeError {
    Connect(EdgeError),
    Session(RunError),
}

/// Starts the server of a machine that runs without it, and waits until it has replayed its log.
pub(super) async fn start(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    machine: &Machine,
) -> Result<()> {
    let started = shell::run(machine, START, &[], START_SECONDS).await?;
    match started.exit_code {
        0 if started.stdout.contains(REPLAYING) => await_replayed(databases, &record.id, machine.id()).await,
        0 => Ok(()),
        _ => Err(Error::internal(format!("PostgreSQL did not start: {}", started.stderr.trim()))),
    }
}

async fn await_replayed(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    sandbox: &SandboxId,
) -> Result<()> {
    let began = Instant::now();
    let mut heard = began;
    loop {
        match probe(databases, id, sandbox).await? {
            Replay::Over => return Ok(()),
            Replay::InProgress => heard = Instant::now(),
            Replay::NoAnswer => {}
        }
        let too_long = [
            (began, REPLAY_MAX, "PostgreSQL is still replaying its log after"),
            (heard, NO_ANSWER_MAX, "PostgreSQL is replaying its log and has not responded for"),
        ];
        if let Some((_, max, what)) = too_long.into_iter().find(|(since, max, _)| since.elapsed() >= *max) {
            return Err(Error::internal(format!("{what} {} min", max.as_secs() / 60)));
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Checks whether a server still replays its log. `original` is the database whose log is replayed,
/// and whose administrator the server has. Fails if the replay can never complete.
pub(super) async fn probe(
    databases: &Arc<ManagedDatabases>,
    original: &DatabaseId,
    sandbox: &SandboxId,
) -> Result<Replay> {
    let failure = match query_recovery(databases, original, sandbox).await {
        Ok(found) => return Ok(found),
        Err(failure) => failure,
    };
    match (classify(&failure), failure) {
        (Some(found), failure) => {
            tracing::debug!(database = %original, %sandbox, ?failure, "waiting for a server that replays WAL");
            Ok(found)
        }
        (None, ProbeError::Connect(error)) => {
            Err(login_error(connector::explain(&error, sandbox, &endpoint(sandbox)).into()))
        }
        (None, ProbeError::Session(error)) => Err(run_error(error)),
    }
}

async fn query_recovery(
    databases: &Arc<ManagedDatabases>,
    original: &DatabaseId,
    sandbox: &SandboxId,
) -> Result<Replay, ProbeError> {
    let backend =
        connector::connect(databases, sandbox, &endpoint(sandbox)).await.map_err(ProbeError::Connect)?;
    let session = Session::over(backend, &administrator(&databases.link, Some(original))).await;
    let session = session.map_err(|error| ProbeError::Session(error.into()))?;
    let outcomes =
        run_in(session, &[statement("SELECT pg_is_in_recovery()")]).await.map_err(ProbeError::Session)?;
    let answer = outcomes.first().and_then(|outcome| outcome.rows.first()?.first()?.as_deref());
    Ok(if answer == Some("f") { Replay::Over } else { Replay::InProgress })
}

fn endpoint(sandbox: &SandboxId) -> Endpoint {
    Endpoint { database: sandbox.to_string(), listener: Listener::Direct }
}

/// Interprets a failed probe. `None` if the replay ended without success: nothing listens, the
/// machine is gone, or the server reports something other than not being ready.
fn classify(failure: &ProbeError) -> Option<Replay> {
    match failure {
        ProbeError::Connect(error) => match error {
            EdgeError::Busy(_) | EdgeError::Unavailable(_) | EdgeError::Broken | EdgeError::Silent => {
                Some(Replay::NoAnswer)
            }
            _ => None,
        },
        ProbeError::Session(RunError::Session(error)) => match error {
            LoginError::Late | LoginError::Broken(_) => Some(Replay::NoAnswer),
            LoginError::Sql(error) => match error.code.as_str() {
                NOT_YET => Some(Replay::InProgress),
                CANCELLED | ENDED => Some(Replay::NoAnswer),
                _ => None,
            },
            LoginError::Connect(_) => None,
        },
        ProbeError::Session(RunError::TooLarge) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use pandastack_postgres::SqlError;

    use super::*;

    /// [`START`] where the template's program ends with these in turn, and a server runs or not.
    fn started(program: [u8; 2], server_runs: bool) -> (bool, String) {
        let ([first, second], stopped) = (program, u8::from(!server_runs));
        let script = format!(
            "runs=0; program() {{ runs=$((runs + 1)); [ $runs = 1 ] && return {first}; return {second}; }}\n\
             runuser() {{ echo said; return {stopped}; }}\n tail() {{ :; }}\n{}",
            START.replace("pandastack-postgres", "program")
        );
        let ran = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        (ran.status.success(), String::from_utf8(ran.stdout).unwrap())
    }

    #[test]
    fn only_a_live_replaying_server_is_awaited() {
        assert_eq!(started([0, 1], true), (true, String::new()));
        assert_eq!(started([1, 0], true), (true, format!("{REPLAYING}\n")));
        assert!(!started([1, 1], true).0, "what is beside the server does not start");
        assert!(!started([1, 0], false).0, "the server does not run");
    }

    #[test]
    fn only_a_slow_server_is_awaited() {
        let said = || "said".to_owned();
        let session = |error: LoginError| ProbeError::Session(error.into());
        let sql = |code: &str| session(SqlError { code: code.to_owned(), ..SqlError::default() }.into());
        for (failure, expect) in [
            (sql(NOT_YET), Some(Replay::InProgress)),
            (sql(CANCELLED), Some(Replay::NoAnswer)),
            (sql(ENDED), Some(Replay::NoAnswer)),
            (session(LoginError::Late), Some(Replay::NoAnswer)),
            (session(io::Error::from(io::ErrorKind::UnexpectedEof).into()), Some(Replay::NoAnswer)),
            (ProbeError::Connect(EdgeError::Silent), Some(Replay::NoAnswer)),
            (ProbeError::Connect(EdgeError::Broken), Some(Replay::NoAnswer)),
            (ProbeError::Connect(EdgeError::Busy(said())), Some(Replay::NoAnswer)),
            (ProbeError::Connect(EdgeError::Unavailable(said())), Some(Replay::NoAnswer)),
            (ProbeError::Connect(EdgeError::PortClosed), None),
            (ProbeError::Connect(EdgeError::Unknown), None),
            (ProbeError::Connect(EdgeError::NotServing(said())), None),
            (sql("28P01"), None),
            (ProbeError::Session(RunError::TooLarge), None),
        ] {
            assert_eq!(classify(&failure), expect, "{failure:?}");
        }
    }
}
