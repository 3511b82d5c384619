//! Standard output: tables and lines, or JSON with `--json`, or names alone with `--quiet`.

use std::io::Write;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::InvalidValue;
use serde::Serialize;

/// Spaces between two columns.
const GAP: usize = 2;

/// Form of the data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON, with every field.
    Json,
    /// Aligned columns.
    Table,
    /// Aligned columns, with more of them in lists.
    Wide,
}

impl std::str::FromStr for Format {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "json" => Ok(Format::Json),
            "table" => Ok(Format::Table),
            "wide" => Ok(Format::Wide),
            _ => Err(InvalidValue::new("expected `json`, `table` or `wide`")),
        }
    }
}

/// The output of a command.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    format: Format,
    quiet: bool,
}

impl Output {
    /// Creates an output. With `quiet`, a list has only the first column, and no header.
    pub fn new(format: Format, quiet: bool) -> Self {
        Self { format, quiet }
    }

    /// Returns whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Writes a value as JSON, or as formatted by `human`.
    pub fn value<T: Serialize>(self, value: &T, human: impl FnOnce(&T) -> String) -> Result<()> {
        let text = if self.is_json() { serde_json::to_string_pretty(value)? } else { human(value) };
        self.line(&text)
    }

    /// Writes a message to standard error; nothing with `--json` or `--quiet`.
    pub fn note(self, text: &str) {
        if !self.is_json() && !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Writes a list as a JSON array, or as a table with these columns.
    pub fn table<T: Serialize, const N: usize>(
        self,
        items: &[T],
        columns: [&str; N],
        row: impl Fn(&T) -> [String; N],
    ) -> Result<()> {
        self.wide_table(items, columns, row, [], |_| [])
    }

    /// Like [`Output::table`], with `more` columns for `-o wide`.
    pub fn wide_table<T: Serialize, const N: usize, const M: usize>(
        self,
        items: &[T],
        columns: [&str; N],
        row: impl Fn(&T) -> [String; N],
        more_columns: [&str; M],
        more: impl Fn(&T) -> [String; M],
    ) -> Result<()> {
        if self.is_json() {
            return self.line(&serde_json::to_string_pretty(items)?);
        }
        let shown = match self.format {
            _ if self.quiet => 1,
            Format::Wide => N + M,
            _ => N,
        };
        let header = columns.iter().chain(&more_columns).map(|&name| name.to_owned());
        let header: Vec<String> = header.take(shown).collect();
        let rows = items.iter().map(|item| {
            let cells = row(item).into_iter().chain(more(item)).take(shown);
            cells.map(|cell| escape_control(&cell)).collect()
        });
        let header = (!self.quiet).then_some(header);
        let rows: Vec<Vec<String>> = header.into_iter().chain(rows).collect();
        self.line(&align(&rows))
    }

    /// Writes one line, or nothing if the text is empty.
    pub fn line(self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.write_all(b"\n")?;
        Ok(stdout.flush()?)
    }

    /// Writes a line of a log; as an object with the field `line` if the output is JSON.
    pub fn log_line(self, line: &str) -> Result<()> {
        match self.is_json() {
            true => self.line(&serde_json::json!({ "line": line }).to_string()),
            false => self.line(line),
        }
    }

    /// Writes a log; as one object per line if the output is JSON.
    pub fn log(self, text: &str) -> Result<()> {
        if !self.is_json() {
            return self.raw(text.as_bytes());
        }
        text.lines().try_for_each(|line| self.log_line(line))
    }

    /// Writes bytes unchanged.
    pub fn raw(self, bytes: &[u8]) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }
}

/// Returns whether an error only means that the reader closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |io: &std::io::Error| io.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(broken)
}

/// Escapes control characters, which would break a table or move the cursor.
fn escape_control(text: &str) -> String {
    let shown = |one: char| if one.is_control() { one.escape_default().to_string() } else { one.to_string() };
    text.chars().map(shown).collect()
}

/// Aligns columns; the last one is not padded.
pub fn align<R: AsRef<[String]>>(rows: &[R]) -> String {
    let mut widths = vec![0; rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0)];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Aligned `label: value` lines; empty values are skipped.
pub fn fields(pairs: &[(&str, String)]) -> String {
    let present: Vec<[String; 2]> = pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(label, value)| [format!("{label}:"), value.clone()])
        .collect();
    align(&present)
}

/// Time since `at`, in the largest unit that fits.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A byte count with a unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_align_without_trailing_spaces() {
        let rows = [["ID", "STATUS"], ["a-long-id", "ok"]].map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows), "ID         STATUS\na-long-id  ok");
    }

    #[test]
    fn rows_of_different_lengths_line_up() {
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned()]];
        assert_eq!(align(&rows), "a     b\nlong");
    }

    #[test]
    fn control_characters_in_a_cell_are_escaped() {
        assert_eq!(escape_control("a\nb\tc \u{1b}[1m ä\\"), "a\\nb\\tc \\u{1b}[1m ä\\");
    }

    #[test]
    fn ages_and_sizes_are_human_readable() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(at(0), at(59)), "59s");
        assert_eq!(age(at(0), at(3599)), "59m");
        assert_eq!(age(at(0), at(90_000)), "1d");
        assert_eq!(age(at(10), at(0)), "0s");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
    }
}
