//! Queries over HTTP in the form that `@neondatabase/serverless` sends them: `POST /sql`, and `/v2` for its WebSocket.
//!
//! The database, the role and its password come in one header, a connection string. Nothing else authenticates a call.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pandastack_types::chain;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use url::Url;

use crate::backend::{ConnectError, Databases};
use crate::endpoint::{Endpoint, choose, split_options};
use crate::limits::{BATCH_STATEMENTS_MAX, QUERY_BODY_BYTES_MAX, QUERY_BODY_WAIT, QUERY_WAIT};
use crate::login::{Credentials, LoginError, Session};
use crate::query::{Bounds, Outcome, RunError, SqlError, Statement, Transaction};
use crate::value::{json_of, parameter};
use crate::websocket;

const CONNECTION: &str = "neon-connection-string";
const RAW_TEXT: &str = "neon-raw-text-output";
const ARRAY_MODE: &str = "neon-array-mode";
const ISOLATION: HeaderName = HeaderName::from_static("neon-batch-isolation-level");
const READ_ONLY: HeaderName = HeaderName::from_static("neon-batch-read-only");
const DEFERRABLE: HeaderName = HeaderName::from_static("neon-batch-deferrable");
const ALLOWED_HEADERS: &str = "Authorization, Content-Type, Neon-Connection-String, Neon-Raw-Text-Output, Neon-Array-Mode, \
     Neon-Pool-Opt-In, Neon-Batch-Isolation-Level, Neon-Batch-Read-Only, Neon-Batch-Deferrable";

/// The routes `/sql` and `/v2`.
pub fn router(databases: Arc<dyn Databases>) -> Router {
    Router::new()
        .route("/sql", post(sql).options(preflight))
        .route("/v2", get(websocket::upgrade))
        .with_state(databases)
}

async fn preflight() -> Response {
    let headers = [
        (header::ALLOW, "OPTIONS, POST"),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_METHODS, "OPTIONS, POST"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ];
    (StatusCode::OK, headers).into_response()
}

async fn sql(State(databases): State<Arc<dyn Databases>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match answer(databases.as_ref(), &parts.headers, body).await {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => refusal.into_response(),
    };
    for name in [ISOLATION, READ_ONLY, DEFERRABLE] {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// One statement as the driver sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    query: String,
    #[serde(default)]
    params: Vec<Value>,
    array_mode: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Call {
    Batch { queries: Vec<Query> },
    Single(Query),
}

async fn answer(databases: &dyn Databases, headers: &HeaderMap, body: Body) -> Result<Value, Refusal> {
    let (endpoint, credentials) = connection(headers, databases.domain())?;
    let read = tokio::time::timeout(QUERY_BODY_WAIT, Limited::new(body, QUERY_BODY_BYTES_MAX).collect());
    let bytes = match read.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Refusal::TooLong),
        Ok(Err(_)) => return Err(bad_request("the request body is incomplete; send it again")),
        Err(_) => {
            let seconds = QUERY_BODY_WAIT.as_secs();
            return Err(bad_request(format!(
                "the request body did not arrive within {seconds} s; send it again"
            )));
        }
    };
    let call: Call = serde_json::from_slice(&bytes).map_err(|error| {
        bad_request(format!("the body must be {{query, params}} or {{queries}}: {error}"))
    })?;
    let (queries, transaction) = match call {
        Call::Single(query) => (vec![query], None),
        Call::Batch { queries } => (queries, Some(transaction(headers)?)),
    };
    if queries.len() > BATCH_STATEMENTS_MAX {
        return Err(bad_request(format!("a transaction can have at most {BATCH_STATEMENTS_MAX} statements")));
    }
    let modes: Vec<_> = queries.iter().map(|query| query.array_mode).collect();
    let statement = |query: Query| Statement {
        sql: query.query,
        parameters: query.params.into_iter().map(parameter).collect(),
    };
    let statements: Vec<_> = queries.into_iter().map(statement).collect();
    let mut session = Session::open(databases, &endpoint, &credentials).await?;
    let bounds = Bounds { rows_max: 0, wait: QUERY_WAIT };
    let outcomes = session.run(databases, &endpoint, &statements, transaction.as_ref(), bounds).await;
    session.close().await;
    let (raw, arrays) = (is_true(headers, RAW_TEXT), is_true(headers, ARRAY_MODE));
    let shown = outcomes?.into_iter().zip(modes);
    let mut shown = shown.map(|(outcome, mode)| show(outcome, raw, mode.unwrap_or(arrays)));
    match transaction {
        Some(_) => Ok(json!({ "results": shown.collect::<Vec<_>>() })),
        None => shown.next().ok_or_else(|| bad_request("the statement is empty; give one")),
    }
}

fn is_true(headers: &HeaderMap, name: &str) -> bool {
    headers.get(name).is_some_and(|value| value == "true")
}

fn transaction(headers: &HeaderMap) -> Result<Transaction, Refusal> {
    let isolation = match headers.get(ISOLATION).map(HeaderValue::as_bytes) {
        None => None,
        Some(b"ReadUncommitted") => Some("READ UNCOMMITTED"),
        Some(b"ReadCommitted") => Some("READ COMMITTED"),
        Some(b"RepeatableRead") => Some("REPEATABLE READ"),
        Some(b"Serializable") => Some("SERIALIZABLE"),
        Some(_) => {
            return Err(bad_request(
                "Neon-Batch-Isolation-Level must be ReadUncommitted, ReadCommitted, RepeatableRead or \
                 Serializable",
            ));
        }
    };
    let (read_only, deferrable) =
        (is_true(headers, READ_ONLY.as_str()), is_true(headers, DEFERRABLE.as_str()));
    Ok(Transaction { isolation, read_only, deferrable })
}

/// The database and the login that the header means.
fn connection(headers: &HeaderMap, domain: Option<&str>) -> Result<(Endpoint, Credentials), Refusal> {
    let text = headers.get(CONNECTION).and_then(|value| value.to_str().ok());
    let text = text.ok_or_else(|| bad_request("the header Neon-Connection-String is missing"))?;
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    parse_connection(text, host, domain).ok_or_else(|| {
        bad_request(format!(
            "Neon-Connection-String must be postgresql://user:password@<database id>.{}/database; \
             if the host is an address, add ?options=endpoint%3D<database id>",
            domain.unwrap_or("pg.<domain>")
        ))
    })
}

pub(crate) fn parse_connection(
    text: &str,
    host: Option<&str>,
    domain: Option<&str>,
) -> Option<(Endpoint, Credentials)> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "postgres" | "postgresql"))?;
    let mut parameters: BTreeMap<String, String> =
        url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    // These parameters only concern the client's side of a connection.
    parameters.retain(|name, _| !name.starts_with("ssl") && name != "channel_binding" && name != "pgbouncer");
    let (options, named) = split_options(parameters.get("options").map_or("", String::as_str));
    parameters.remove("options");
    if !options.is_empty() {
        parameters.insert("options".to_owned(), options);
    }
    let named_in_url = choose(url.host_str(), named.as_deref(), None, domain).ok();
    let endpoint = named_in_url.or_else(|| Endpoint::from_host(host?, domain))?;
    let user = percent_decode(url.username()).filter(|user| !user.is_empty())?;
    let password = percent_decode(url.password().unwrap_or_default())?;
    let database = percent_decode(url.path().trim_start_matches('/'))?;
    let database = if database.is_empty() { user.clone() } else { database };
    Some((endpoint, Credentials { user, password, database, parameters }))
}

fn percent_decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

fn show(outcome: Outcome, raw: bool, as_arrays: bool) -> Value {
    let columns = &outcome.columns;
    let fields: Vec<Value> = columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name, "dataTypeID": column.type_oid, "tableID": column.table,
                "columnID": column.number, "dataTypeSize": column.type_size,
                "dataTypeModifier": column.type_modifier, "format": "text",
            })
        })
        .collect();
    let cell = |(value, oid): (Option<String>, u32)| match value {
        None => Value::Null,
        Some(text) if raw => Value::String(text),
        Some(text) => json_of(&text, oid),
    };
    let (command, row_count) = (outcome.command().to_owned(), outcome.row_count());
    let types: Vec<u32> = columns.iter().map(|column| column.type_oid).collect();
    let row = |values: Vec<Option<String>>| {
        let cells = values.into_iter().zip(types.iter().copied()).map(cell);
        match as_arrays {
            true => Value::Array(cells.collect()),
            false => {
                let names = columns.iter().map(|column| column.name.clone());
                Value::Object(names.zip(cells).collect::<Map<_, _>>())
            }
        }
    };
    let rows: Vec<Value> = outcome.rows.into_iter().map(row).collect();
    json!({ "fields": fields, "rows": rows, "command": command, "rowCount": row_count, "rowAsArray": as_arrays })
}

/// A call that has no result.
enum Refusal {
    Sql(SqlError),
    TooLong,
    TooLarge(String),
    Unavailable(String),
}

fn bad_request(message: impl Into<String>) -> Refusal {
    Refusal::Sql(SqlError::new("08P01", message))
}

impl From<LoginError> for Refusal {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::Sql(error) => Refusal::Sql(*error),
            LoginError::Connect(ConnectError::Unknown(_)) => {
                Refusal::Sql(SqlError::new("3D000", error.to_string()))
            }
            other => Refusal::Unavailable(chain(&other)),
        }
    }
}

impl From<RunError> for Refusal {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Session(error) => error.into(),
            RunError::TooLarge => Refusal::TooLarge(error.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let plain =
            |message: String, code: &str| Json(json!({ "message": message, "error": message, "code": code }));
        match self {
            Refusal::Sql(error) => (StatusCode::BAD_REQUEST, Json(show_error(&error))).into_response(),
            Refusal::TooLong => {
                let message = format!("the request is larger than {QUERY_BODY_BYTES_MAX} bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, plain(message, "54000")).into_response()
            }
            Refusal::TooLarge(message) => {
                (StatusCode::INSUFFICIENT_STORAGE, plain(message, "54000")).into_response()
            }
            Refusal::Unavailable(message) => {
                (StatusCode::SERVICE_UNAVAILABLE, plain(message, "08006")).into_response()
            }
        }
    }
}

fn show_error(error: &SqlError) -> Value {
    const FIELDS: [(char, &str); 14] = [
        ('D', "detail"),
        ('H', "hint"),
        ('P', "position"),
        ('p', "internalPosition"),
        ('q', "internalQuery"),
        ('W', "where"),
        ('s', "schema"),
        ('t', "table"),
        ('c', "column"),
        ('d', "dataType"),
        ('n', "constraint"),
        ('F', "file"),
        ('L', "line"),
        ('R', "routine"),
    ];
    let mut shown = Map::new();
    shown.insert("message".to_owned(), error.message.as_str().into());
    shown.insert("code".to_owned(), error.code.as_str().into());
    shown.insert("severity".to_owned(), error.severity.as_str().into());
    for (letter, name) in FIELDS {
        shown.insert(name.to_owned(), error.field(letter).map_or(Value::Null, Value::from));
    }
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Listener;

    #[test]
    fn a_connection_string_yields_the_database_and_login() {
        let (endpoint, login) = parse_connection(
            "postgresql://us%40er:p%2Fw@A1-pooler.pg.example.com/db?sslmode=require&application_name=x",
            None,
            None,
        )
        .unwrap();
        assert_eq!(endpoint, Endpoint { database: "a1".into(), listener: Listener::Pooler });
        assert_eq!(
            (login.user.as_str(), login.password.as_str(), login.database.as_str()),
            ("us@er", "p/w", "db")
        );
        assert_eq!(login.parameters.len(), 1);
        let by_option =
            parse_connection("postgres://u:p@127.0.0.1:5432/db?options=endpoint%3Da1", None, None);
        assert_eq!(by_option.unwrap().0.database, "a1");
        let by_host = parse_connection("postgres://u:p@127.0.0.1/db", Some("a2.pg.localhost:80"), None);
        assert_eq!(by_host.unwrap().0.database, "a2");
        let own = parse_connection("postgres://u:p@a3.data.example/db", None, Some("data.example"));
        assert_eq!(own.unwrap().0.database, "a3");
        for wrong in ["mysql://u:p@a1.pg.x/db", "postgres://a1.pg.x/db", "postgres://u:p@host/db", "nonsense"]
        {
            assert!(parse_connection(wrong, None, None).is_none(), "{wrong}");
        }
    }

    #[test]
    fn rows_are_shown_as_arrays_or_as_objects() {
        let column = |name: &str, type_oid| crate::query::Column {
            name: name.into(),
            table: 0,
            number: 0,
            type_oid,
            type_size: 4,
            type_modifier: -1,
        };
        let outcome = Outcome {
            columns: vec![column("n", 23), column("t", 25)],
            rows: vec![vec![Some("1".into()), None]],
            tag: "SELECT 1".into(),
            truncated: false,
        };
        let raw = show(outcome.clone(), true, true);
        assert_eq!(raw["rows"], json!([["1", null]]));
        assert_eq!(
            (&raw["rowCount"], &raw["command"], &raw["fields"][0]["dataTypeID"]),
            (&json!(1), &json!("SELECT"), &json!(23))
        );
        assert_eq!(show(outcome, false, false)["rows"], json!([{"n": 1, "t": null}]));
    }
}
