//! `pandastack usage`: resource usage of the workspace, in total, by sandbox, by kind of service, by function
//! or by day.

use std::process::ExitCode;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use pandastack_client::Client;
use pandastack_types::api::{FunctionUsage, KindUsage, UsageReport, UsageTotals};
use serde::Serialize;

use super::runtime::with_client;
use crate::failure::Failure;
use crate::output::{Output, align, size};

/// Most days of one report: each is a call of its own.
const DAYS_MAX: usize = 366;
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Default period.
const PERIOD: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Start of the period: a time such as 2026-01-31T00:00:00Z, or a duration before now such as 7d
    /// [default: 30d]
    #[arg(long, alias = "from", value_name = "TIME", value_parser = past)]
    since: Option<Timestamp>,
    /// End of the period, in the same form [default: now]
    #[arg(long, alias = "to", value_name = "TIME", value_parser = past)]
    until: Option<Timestamp>,
    /// What to sum by: sandbox, kind (of service), function or day (UTC)
    #[arg(long, value_name = "sandbox|kind|function|day", default_value = "sandbox")]
    by: By,
    /// Number of rows to show; totals include all rows
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
    limit: usize,
}

/// Rows of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Sandbox,
    Kind,
    Function,
    Day,
}

impl std::str::FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sandbox" => Ok(By::Sandbox),
            "kind" => Ok(By::Kind),
            "function" => Ok(By::Function),
            "day" => Ok(By::Day),
            _ => Err("expected `sandbox`, `kind`, `function` or `day`".to_owned()),
        }
    }
}

/// A time, or a duration before now.
fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let ago = super::token::duration(text)
        .map_err(|_| "expected a time such as 2026-01-31T00:00:00Z, or a duration such as 12h or 7d")?;
    Timestamp::now().checked_sub(ago).map_err(|_| "the time is out of range".to_owned())
}

/// Usage by day, as printed with `--json`.
#[derive(Debug, Serialize)]
struct Days {
    from: Timestamp,
    to: Timestamp,
    total: UsageTotals,
    days: Vec<Day>,
}

/// Usage of one day.
#[derive(Debug, Serialize)]
struct Day {
    /// Its date, in UTC.
    day: String,
    #[serde(flatten)]
    used: UsageTotals,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        if args.by == By::Day {
            let days = by_day(&client, args.since, args.until).await?;
            output.value(&days, |days| describe_days(days, args.limit))?;
            return Ok(ExitCode::SUCCESS);
        }
        let text = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let report = client.usage(text(args.since).as_deref(), text(args.until).as_deref()).await?;
        output.value(&report, |report| match args.by {
            By::Kind => describe_kinds(report),
            By::Function => describe_functions(report, args.limit),
            _ => describe(report, args.limit),
        })?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn by_day(client: &Client, since: Option<Timestamp>, until: Option<Timestamp>) -> Result<Days> {
    let to = until.unwrap_or_else(Timestamp::now);
    let from = since.map_or_else(|| to.checked_sub(PERIOD), Ok)?;
    let total = client.usage(Some(&from.to_string()), Some(&to.to_string())).await?.total;
    let mut days = Vec::new();
    // The newest day first.
    for (start, end) in days_of(from, to)?.into_iter().rev() {
        let used = client.usage(Some(&start.to_string()), Some(&end.to_string())).await?.total;
        days.push(Day { day: start.strftime("%Y-%m-%d").to_string(), used });
    }
    Ok(Days { from, to, total, days })
}

/// The days (UTC) of a period; the first and the last may be parts of one.
fn days_of(from: Timestamp, to: Timestamp) -> Result<Vec<(Timestamp, Timestamp)>> {
    let mut days = Vec::new();
    let mut start = from;
    while start < to {
        if days.len() == DAYS_MAX {
            return Err(Failure::new(format!("the period is longer than {DAYS_MAX} days"))
                .hint("choose a shorter one with --since and --until")
                .into());
        }
        let midnight = Timestamp::from_second(start.as_second().div_euclid(86_400) * 86_400)?;
        let end = midnight.checked_add(DAY)?.min(to);
        days.push((start, end));
        start = end;
    }
    Ok(days)
}

const COLUMNS: [&str; 7] = ["CREATES", "CPU", "MEMORY", "ASLEEP", "SENT", "RECEIVED", "CALLS"];

fn describe(report: &UsageReport, limit: usize) -> String {
    let rows = report.sandboxes.iter().map(|sandbox| row(sandbox.sandbox_id.to_string(), &sandbox.used));
    let left = report.sandboxes.len().saturating_sub(limit);
    let more = match (report.truncated, left) {
        (true, _) => "\nsome sandboxes are not shown; `all` includes them".to_owned(),
        (false, 0) => String::new(),
        (false, left) => format!("\n{left} more sandboxes are not shown; `all` includes them"),
    };
    let table = table("SANDBOX", &report.total, rows.take(limit));
    format!("{} to {}\n\n{table}{more}", report.from, report.to)
}

fn describe_kinds(report: &UsageReport) -> String {
    let rows = report.kinds.iter().map(|one: &KindUsage| row(one.kind.as_str().to_owned(), &one.used));
    format!("{} to {}\n\n{}", report.from, report.to, table("KIND", &report.total, rows))
}

fn describe_days(days: &Days, limit: usize) -> String {
    let rows = days.days.iter().map(|day| row(day.day.clone(), &day.used));
    let left = days.days.len().saturating_sub(limit);
    let more = if left == 0 {
        String::new()
    } else {
        format!("\n{left} earlier days are not shown; `all` includes them")
    };
    format!("{} to {}\n\n{}{more}", days.from, days.to, table("DAY", &days.total, rows.take(limit)))
}

fn describe_functions(report: &UsageReport, limit: usize) -> String {
    let header = ["FUNCTION", "CALLS", "BILLED"].map(str::to_owned);
    let billed = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let all = ["all".to_owned(), report.total.calls.to_string(), billed(report.total.billed_ms)];
    let row =
        |one: &FunctionUsage| [one.function_id.to_string(), one.calls.to_string(), billed(one.billed_ms)];
    let rows: Vec<_> =
        [header, all].into_iter().chain(report.functions.iter().take(limit).map(row)).collect();
    let left = report.functions.len().saturating_sub(limit);
    let more = if left == 0 {
        String::new()
    } else {
        format!("\n{left} more functions are not shown; `all` includes them")
    };
    format!("{} to {}\n\n{}{more}", report.from, report.to, align(&rows))
}

fn table(name: &str, total: &UsageTotals, rows: impl Iterator<Item = Vec<String>>) -> String {
    let header = [name].into_iter().chain(COLUMNS).map(str::to_owned).collect();
    align(&[header, row("all".to_owned(), total)].into_iter().chain(rows).collect::<Vec<_>>())
}

fn row(name: String, used: &UsageTotals) -> Vec<String> {
    let hours = |seconds: u64| format!("{:.1} h", seconds as f64 / 3600.0);
    vec![
        name,
        used.creates.to_string(),
        format!("{:.1} s", used.cpu_ms as f64 / 1000.0),
        format!("{:.1} GiB h", used.memory_mb_seconds as f64 / 1024.0 / 3600.0),
        hours(used.asleep_seconds),
        size(used.sent_bytes),
        size(used.received_bytes),
        used.calls.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_period_is_split_at_midnight() {
        let days = days_of(at("2026-01-30T22:00:00Z"), at("2026-02-01T06:00:00Z")).unwrap();
        let shown: Vec<String> = days.iter().map(|(from, to)| format!("{from} {to}")).collect();
        assert_eq!(
            shown,
            [
                "2026-01-30T22:00:00Z 2026-01-31T00:00:00Z",
                "2026-01-31T00:00:00Z 2026-02-01T00:00:00Z",
                "2026-02-01T00:00:00Z 2026-02-01T06:00:00Z",
            ]
        );
        assert!(days_of(at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z")).is_err());
    }

    #[test]
    fn the_start_is_a_time_or_a_duration_before_now() {
        assert_eq!(past("2026-01-31T00:00:00Z"), Ok(at("2026-01-31T00:00:00Z")));
        let week = past("7d").unwrap().duration_until(Timestamp::now()).as_hours();
        assert_eq!(week, 7 * 24);
        assert!(past("yesterday").is_err());
    }
}
