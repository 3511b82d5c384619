//! `pandastack db query`: runs a statement without a PostgreSQL client.

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{DatabaseQuery, DatabaseRows};
use serde_json::Value;

use super::resolve::resolve;
use crate::output::Output;

/// Commands whose tag has a number of rows.
const COUNTED: [&str; 8] = ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "FETCH", "MOVE", "COPY"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Database ID, unique ID prefix, name or label
    database: String,
    /// SQL statement, with $1, $2, ... for parameters
    sql: String,
    /// Parameter values
    parameters: Vec<String>,
    /// Cancel the statement after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Cancel the statement after this many milliseconds
    #[arg(long, value_name = "MS", hide = true, conflicts_with = "timeout")]
    timeout_ms: Option<u64>,
    /// Maximum number of rows to print
    #[arg(long = "limit", short = 'n', alias = "max-rows", value_name = "COUNT")]
    max_rows: Option<u32>,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<()> {
    let id = resolve(client, &args.database).await?;
    let request = DatabaseQuery {
        sql: args.sql,
        params: args.parameters.into_iter().map(Value::String).collect(),
        database: None,
        timeout_ms: args.timeout_ms.or(args.timeout.map(|seconds| seconds.saturating_mul(1000))),
        max_rows: args.max_rows,
    };
    let rows = client.query_database(&id, &request).await?;
    output.value(&rows, format_rows)
}

/// Formats rows as a table, followed by the command tag.
fn format_rows(result: &DatabaseRows) -> String {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let header: Vec<String> = result.columns.iter().map(|column| column.name.clone()).collect();
    let rows: Vec<Vec<String>> = result.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().chain([&header]).filter_map(|row| row.get(at));
        cells.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let more = if result.truncated { ", truncated" } else { "" };
    let tag = match COUNTED.contains(&result.command.as_str()) {
        true => format!("{} {}", result.command, result.count),
        false => result.command.clone(),
    };
    let done = format!("{tag}{more} ({} ms)", result.duration_ms);
    let head = (!header.is_empty()).then(|| line(&header));
    let lines: Vec<String> = head.into_iter().chain(rows.iter().map(line)).chain([done]).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_types::api::DatabaseColumn;
    use serde_json::json;

    #[test]
    fn rows_are_aligned_below_their_columns() {
        let column = |name: &str| DatabaseColumn { name: name.into(), type_name: "text".into() };
        let result = DatabaseRows {
            columns: vec![column("id"), column("name")],
            rows: vec![vec![json!(1), json!("ä")], vec![json!(22), json!(null)]],
            count: 2,
            command: "SELECT".into(),
            truncated: false,
            duration_ms: 5,
        };
        assert_eq!(format_rows(&result), "id  name\n1   ä\n22\nSELECT 2 (5 ms)");
    }

    #[test]
    fn only_commands_that_count_rows_show_a_row_count() {
        let result = |command: &str| DatabaseRows {
            columns: Vec::new(),
            rows: Vec::new(),
            count: 0,
            command: command.into(),
            truncated: false,
            duration_ms: 5,
        };
        assert_eq!(format_rows(&result("CREATE")), "CREATE (5 ms)");
        assert_eq!(format_rows(&result("DELETE")), "DELETE 0 (5 ms)");
    }
}
