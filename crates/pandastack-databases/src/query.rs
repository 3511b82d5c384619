//! Queries over HTTP, each in its own session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_postgres::{
    Bounds, Endpoint, Listener, Outcome, Session, Statement, json_of, parameter, type_name,
};
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::api::{DatabaseColumn, DatabaseQuery, DatabaseRows};
use pandastack_types::limits::{DATABASE_QUERY_MS_MAX, DATABASE_ROWS_MAX};
use pandastack_types::{Error, Result};

use crate::credentials::{DATABASE, tenant};
use crate::gateway::StoredDatabases;
use crate::service::ManagedDatabases;
use crate::{machines, server};

/// Default time limit of a query.
const QUERY_MS_DEFAULT: u64 = 60_000;

/// Runs one statement as the owner of a database and returns its rows.
pub async fn run_query(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    request: DatabaseQuery,
) -> Result<DatabaseRows> {
    machines::ready(record)?;
    let wait_ms = request.timeout_ms.unwrap_or(QUERY_MS_DEFAULT);
    if !(1..=DATABASE_QUERY_MS_MAX).contains(&wait_ms) {
        return Err(Error::bad_request(format!("`timeout_ms` must be 1 to {DATABASE_QUERY_MS_MAX}")));
    }
    let rows_max = request.max_rows.unwrap_or(DATABASE_ROWS_MAX);
    if !(1..=DATABASE_ROWS_MAX).contains(&rows_max) {
        return Err(Error::bad_request(format!("`max_rows` must be 1 to {DATABASE_ROWS_MAX}")));
    }
    if request.sql.trim().is_empty() {
        return Err(Error::bad_request("`sql` is empty; give a statement to run"));
    }
    let began = Instant::now();
    let gateway = StoredDatabases(Arc::clone(databases));
    let endpoint = Endpoint { database: record.id.to_string(), listener: Listener::Direct };
    let login = tenant(&databases.link, record, request.database.as_deref().unwrap_or(DATABASE));
    let parameters = request.params.into_iter().map(parameter).collect();
    let statement = Statement { sql: request.sql, parameters };
    let mut session = Session::open(&gateway, &endpoint, &login).await.map_err(server::login_error)?;
    let bounds = Bounds { rows_max, wait: Duration::from_millis(wait_ms) };
    let outcomes = session.run(&gateway, &endpoint, &[statement], None, bounds).await;
    session.close().await;
    let outcome = outcomes.map_err(server::run_error)?.into_iter().next().unwrap_or_default();
    Ok(rows(outcome, began.elapsed()))
}

fn rows(outcome: Outcome, took: Duration) -> DatabaseRows {
    let types: Vec<u32> = outcome.columns.iter().map(|column| column.type_oid).collect();
    let cell = |(value, oid): (Option<String>, &u32)| {
        value.map_or(serde_json::Value::Null, |text| json_of(&text, *oid))
    };
    // Of a truncated change only the returned rows are known.
    let unknown = if outcome.truncated { outcome.rows.len() as u64 } else { 0 };
    let (command, count) = (outcome.command().to_owned(), outcome.row_count().unwrap_or(unknown));
    let column = |column: pandastack_postgres::Column| DatabaseColumn {
        name: column.name,
        type_name: type_name(column.type_oid),
    };
    DatabaseRows {
        rows: outcome.rows.into_iter().map(|row| row.into_iter().zip(&types).map(cell).collect()).collect(),
        columns: outcome.columns.into_iter().map(column).collect(),
        count,
        command,
        truncated: outcome.truncated,
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}
