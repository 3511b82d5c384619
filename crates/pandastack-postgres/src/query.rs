//! Statements and their results, all as text: clients over HTTP parse types themselves, as PostgreSQL writes them.

use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::Databases;
use crate::cancel::{self, Target};
use crate::endpoint::Endpoint;
use crate::errors;
use crate::keyword::keyword;
use crate::limits::{PARAMETERS_MAX, RESULT_BYTES_MAX};
use crate::login::{LoginError, Session};
use crate::wire::{Fatal, HEAD_BYTES, IDLE};

/// One statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statement {
    /// SQL with `$1`, `$2`, ...
    pub sql: String,
    /// Their values as text; `None` is NULL.
    pub parameters: Vec<Option<String>>,
}

/// Options of the transaction around the statements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// In SQL notation, such as `REPEATABLE READ`.
    pub isolation: Option<&'static str>,
    /// Whether the transaction is read-only.
    pub read_only: bool,
    /// Waits until it can run without conflicts.
    pub deferrable: bool,
}

impl Transaction {
    fn begin(&self) -> String {
        let mut sql = "BEGIN".to_owned();
        if let Some(level) = self.isolation {
            sql.push_str(" ISOLATION LEVEL ");
            sql.push_str(level);
        }
        sql.push_str(if self.read_only { " READ ONLY" } else { "" });
        sql.push_str(if self.deferrable { " DEFERRABLE" } else { "" });
        sql
    }
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// The column's table, or 0.
    pub table: u32,
    /// Number in that table, or 0.
    pub number: i16,
    /// Type.
    pub type_oid: u32,
    /// Bytes of the type, or -1.
    pub type_size: i16,
    /// Modifier of the type, or -1.
    pub type_modifier: i32,
}

/// The result of a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Columns.
    pub columns: Vec<Column>,
    /// Values as text, row by row.
    pub rows: Vec<Vec<Option<String>>>,
    /// `SELECT 3`, `INSERT 0 1`, `CREATE TABLE`. Of a truncated change, only the command.
    pub tag: String,
    /// Whether more rows existed than were requested.
    pub truncated: bool,
}

impl Outcome {
    /// First word of the tag.
    pub fn command(&self) -> &str {
        self.tag.split(' ').next().unwrap_or_default()
    }

    /// Number of rows in the tag.
    pub fn row_count(&self) -> Option<u64> {
        self.tag.rsplit(' ').next()?.parse().ok()
    }
}

/// An error of the server's, field by field.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{severity}: {message} (SQLSTATE {code})")]
pub struct SqlError {
    /// `ERROR`, `FATAL`.
    pub severity: String,
    /// SQLSTATE.
    pub code: String,
    /// The error message.
    pub message: String,
    /// The other fields by the protocol's letter.
    pub fields: std::collections::BTreeMap<char, String>,
}

impl SqlError {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { severity: "ERROR".into(), code: code.into(), message: message.into(), ..Self::default() }
    }

    /// Reads an `ErrorResponse`.
    pub fn parse(body: &[u8]) -> Self {
        let mut error = Self::default();
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, text)) = field.split_first() else { continue };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                b'V' => error.severity = text,
                b'S' if error.severity.is_empty() => error.severity = text,
                b'C' => error.code = text,
                b'M' => error.message = text,
                kind => drop(error.fields.insert(char::from(*kind), text)),
            }
        }
        error
    }

    /// Returns whether a retry may succeed: the server is not running yet, or out of connections.
    pub fn is_passing(&self) -> bool {
        self.code.starts_with("57P0") || self.code == "53300"
    }

    /// A field by its letter.
    pub fn field(&self, letter: char) -> Option<&str> {
        self.fields.get(&letter).map(String::as_str)
    }
}

impl From<Fatal> for SqlError {
    fn from(fatal: Fatal) -> Self {
        Self {
            severity: "FATAL".into(),
            code: fatal.code.into_owned(),
            message: fatal.message,
            fields: fatal.hint.map(|hint| ('H', hint)).into_iter().collect(),
        }
    }
}

/// Limits of one run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Rows kept of each statement; 0 for all.
    pub rows_max: u32,
    /// Time for everything.
    pub wait: Duration,
}

/// Reason why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The session, or a statement.
    #[error(transparent)]
    Session(#[from] LoginError),
    /// The results are larger than they may be.
    #[error("the result is larger than {RESULT_BYTES_MAX} bytes; select fewer rows or columns")]
    TooLarge,
}

impl From<std::io::Error> for RunError {
    fn from(error: std::io::Error) -> Self {
        RunError::Session(error.into())
    }
}

impl From<SqlError> for RunError {
    fn from(error: SqlError) -> Self {
        RunError::Session(error.into())
    }
}

impl Session {
    /// Runs statements, one after another or as one transaction. A statement that takes too long or
    /// returns too much is cancelled; one in progress ends when the machine stops.
    pub async fn run(
        &mut self,
        databases: &dyn Databases,
        endpoint: &Endpoint,
        statements: &[Statement],
        transaction: Option<&Transaction>,
        bounds: Bounds,
    ) -> Result<Vec<Outcome>, RunError> {
        let (closing, cut) = (self.backend.closing.clone(), self.backend.cut.clone());
        let asleep = || RunError::from(SqlError::from(Fatal::asleep()));
        let ran = tokio::select! {
            biased;
            ran = tokio::time::timeout(bounds.wait, self.run_all(statements, transaction, bounds)) => ran,
            () = cut.cancelled() => return Err(asleep()),
        };
        let failed = match ran {
            Ok(Err(RunError::Session(LoginError::Broken(_)))) if cut.is_cancelled() => return Err(asleep()),
            Ok(Err(error @ RunError::TooLarge)) => error,
            Ok(Err(RunError::Session(LoginError::Sql(mut error)))) => {
                if let Some(hint) = errors::explain(databases, endpoint, &error.code).await {
                    error.fields.insert('H', hint);
                }
                return Err(LoginError::Sql(error).into());
            }
            Ok(ran) => return ran,
            Err(_) => {
                let late = format!("the statement was cancelled after {} ms", bounds.wait.as_millis());
                SqlError::new("57014", late).into()
            }
        };
        if let Some((process, secret)) = self.key() {
            let target = Target { endpoint: endpoint.clone(), process, secret, closing };
            cancel::send(&target, databases).await;
        }
        Err(failed)
    }

    async fn run_all(
        &mut self,
        statements: &[Statement],
        transaction: Option<&Transaction>,
        bounds: Bounds,
    ) -> Result<Vec<Outcome>, RunError> {
        let mut out = BytesMut::new();
        if let Some(transaction) = transaction {
            encode(&Statement { sql: transaction.begin(), parameters: Vec::new() }, 0, &mut out)?;
        }
        for statement in statements {
            encode(statement, bounds.rows_max, &mut out)?;
        }
        if transaction.is_some() {
            encode(&Statement { sql: "COMMIT".to_owned(), parameters: Vec::new() }, 0, &mut out)?;
        }
        frontend::sync(&mut out);
        match self.send_while_reading(&out).await {
            // A server that disconnects sends the reason first, which is read below.
            Err(RunError::Session(LoginError::Broken(_))) => {}
            sent => sent?,
        }
        let mut outcomes = self.collect(statements.len()).await?;
        if transaction.is_some() {
            outcomes.pop();
            outcomes = outcomes.split_off(1.min(outcomes.len()));
        }
        for (outcome, statement) in
            outcomes.iter_mut().zip(statements).filter(|(outcome, _)| outcome.truncated)
        {
            outcome.tag = truncated_tag(&statement.sql, outcome.rows.len());
        }
        Ok(outcomes)
    }

    /// Sends a pipeline while reading: a server may stop reading until its results are read.
    async fn send_while_reading(&mut self, mut out: &[u8]) -> Result<(), RunError> {
        let (mut reader, mut writer) = tokio::io::split(&mut self.backend.stream);
        while !out.is_empty() {
            tokio::select! {
                written = writer.write(out) => out = &out[written?..],
                read = reader.read_buf(&mut self.buffer) => {
                    if read? == 0 {
                        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                    }
                }
            }
            if self.buffer.len() > RESULT_BYTES_MAX {
                return Err(RunError::TooLarge);
            }
        }
        Ok(writer.flush().await?)
    }

    /// Reads results of these statements, of BEGIN, COMMIT and ROLLBACK, up to the next `ReadyForQuery`.
    pub(crate) async fn collect(&mut self, statements: usize) -> Result<Vec<Outcome>, RunError> {
        let (mut outcomes, mut outcome, mut failed, mut bytes) = (Vec::new(), Outcome::default(), None, 0);
        loop {
            let (kind, body) = match self.receive(RESULT_BYTES_MAX).await {
                Err(error) if error.kind() == std::io::ErrorKind::Other => return Err(RunError::TooLarge),
                Err(error) => return Err(failed.map_or_else(|| error.into(), RunError::from)),
                Ok(received) => received,
            };
            bytes += HEAD_BYTES + body.len();
            if bytes > RESULT_BYTES_MAX || outcomes.len() > statements + 3 {
                return Err(RunError::TooLarge);
            }
            match kind {
                b'T' => outcome.columns = columns(body).ok_or_else(malformed)?,
                b'D' => outcome.rows.push(row(body).ok_or_else(malformed)?),
                b's' => {
                    outcome.truncated = true;
                    outcomes.push(std::mem::take(&mut outcome));
                }
                b'C' => {
                    outcome.tag = text(&body);
                    outcomes.push(std::mem::take(&mut outcome));
                }
                b'I' => outcomes.push(std::mem::take(&mut outcome)),
                b'E' => failed = failed.or(Some(SqlError::parse(&body))),
                // No known SQL gets here. The statement ends with the connection.
                b'G' | b'H' => return Err(copy_refused().into()),
                b'Z' if body.first() == Some(&IDLE) => {
                    return failed.map_or(Ok(outcomes), |error| Err(error.into()));
                }
                b'Z' => {
                    // A statement left a transaction open, or one of a transaction failed: the next user must not see it.
                    let mut out = BytesMut::new();
                    frontend::query("ROLLBACK", &mut out)?;
                    self.send(&out).await?;
                    failed = failed.or_else(|| {
                        Some(SqlError::new(
                            "25001",
                            "the statement left a transaction open; send the whole transaction in one call",
                        ))
                    });
                }
                _ => {}
            }
        }
    }
}

fn malformed() -> std::io::Error {
    std::io::Error::other("the server sent a malformed result")
}

fn copy_refused() -> SqlError {
    SqlError::new("0A000", "COPY needs a connection of its own; use psql or a driver")
}

/// The tag of a statement whose rows were truncated: servers then send no tag.
fn truncated_tag(sql: &str, rows: usize) -> String {
    match keyword(sql) {
        change if ["INSERT", "UPDATE", "DELETE", "MERGE"].contains(&change.as_str()) => change,
        _ => format!("SELECT {rows}"),
    }
}

fn encode(statement: &Statement, rows_max: u32, out: &mut BytesMut) -> Result<(), RunError> {
    let parameters = &statement.parameters;
    if parameters.len() > PARAMETERS_MAX {
        return Err(SqlError::new(
            "08P01",
            format!("a statement can have at most {PARAMETERS_MAX} parameters"),
        )
        .into());
    }
    // Refused before sending: a COPY would lose rows in a committed transaction, or wait for input.
    if keyword(&statement.sql) == "COPY" {
        return Err(copy_refused().into());
    }
    frontend::parse("", &statement.sql, [], out)?;
    let write = |value: &Option<String>, out: &mut BytesMut| match value {
        Some(text) => {
            out.extend_from_slice(text.as_bytes());
            Ok(IsNull::No)
        }
        None => Ok(IsNull::Yes),
    };
    let bound = frontend::bind("", "", [0], parameters, write, [0], out);
    bound.map_err(|_| SqlError::new("08P01", "the parameters are too large for a message"))?;
    frontend::describe(b'P', "", out)?;
    frontend::execute("", i32::try_from(rows_max).unwrap_or(0), out)?;
    Ok(())
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap_or(body)).into_owned()
}

fn columns(mut body: Bytes) -> Option<Vec<Column>> {
    let count = body.try_get_u16().ok()?;
    let column = |_| {
        let end = body.iter().position(|byte| *byte == 0)?;
        let name = text(&body.split_to(end));
        body.advance(1);
        let (table, number) = (body.try_get_u32().ok()?, body.try_get_i16().ok()?);
        let (type_oid, type_size) = (body.try_get_u32().ok()?, body.try_get_i16().ok()?);
        let (type_modifier, _format) = (body.try_get_i32().ok()?, body.try_get_i16().ok()?);
        Some(Column { name, table, number, type_oid, type_size, type_modifier })
    };
    (0..count).map(column).collect()
}

/// Values of a `DataRow` as text.
pub fn row(mut body: Bytes) -> Option<Vec<Option<String>>> {
    let count = body.try_get_u16().ok()?;
    let value = |_| {
        let Ok(bytes) = usize::try_from(body.try_get_i32().ok()?) else { return Some(None) };
        let value = (bytes <= body.len()).then(|| body.split_to(bytes))?;
        Some(Some(String::from_utf8_lossy(&value).into_owned()))
    };
    (0..count).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_results_are_parsed() {
        let body = Bytes::from_static(b"\0\x01id\0\0\0\x40\x01\0\x02\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0");
        let column = Column {
            name: "id".into(),
            table: 0x4001,
            number: 2,
            type_oid: 23,
            type_size: 4,
            type_modifier: -1,
        };
        assert_eq!(columns(body), Some(vec![column]));
        let body = Bytes::from_static(b"\0\x02\0\0\0\x02hi\xff\xff\xff\xff");
        assert_eq!(row(body), Some(vec![Some("hi".into()), None]));
        assert_eq!(row(Bytes::from_static(b"\0\x01\0\0\0\x09hi")), None);
        assert_eq!(columns(Bytes::from_static(b"\0\x01id")), None);
    }

    #[test]
    fn command_tags_give_the_command_and_row_count() {
        let outcome = |tag: &str| Outcome { tag: tag.into(), ..Outcome::default() };
        assert_eq!((outcome("INSERT 0 3").command(), outcome("INSERT 0 3").row_count()), ("INSERT", Some(3)));
        assert_eq!(
            (outcome("CREATE TABLE").command(), outcome("CREATE TABLE").row_count()),
            ("CREATE", None)
        );
    }

    #[test]
    fn truncated_write_results_have_no_row_count() {
        for (sql, command, count) in [
            ("insert into t values (1) returning *", "INSERT", None),
            ("/* x */ UPDATE t SET n = 1 RETURNING n", "UPDATE", None),
            ("DELETE FROM t RETURNING n", "DELETE", None),
            ("MERGE INTO t USING u ON true", "MERGE", None),
            ("SELECT 1", "SELECT", Some(3)),
            ("VALUES (1)", "SELECT", Some(3)),
        ] {
            let outcome = Outcome { tag: truncated_tag(sql, 3), ..Outcome::default() };
            assert_eq!((outcome.command(), outcome.row_count()), (command, count), "{sql}");
        }
    }

    #[test]
    fn errors_keep_their_fields() {
        let error = SqlError::parse(b"SFEHLER\0VERROR\0C42P01\0Mno table\0P15\0\0");
        assert_eq!(
            (error.severity.as_str(), error.code.as_str(), error.field('P')),
            ("ERROR", "42P01", Some("15"))
        );
    }

    #[test]
    fn transaction_options_become_a_begin_statement() {
        let transaction = Transaction { isolation: Some("SERIALIZABLE"), read_only: true, deferrable: true };
        assert_eq!(transaction.begin(), "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE");
    }
}
