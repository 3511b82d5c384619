//! Standard output: tables and lines, or JSON with `--json`.

use std::io::Write;

use anyhow::Result;
use jiff::Timestamp;
use serde::Serialize;

/// Spaces between two columns.
const GAP: usize = 2;

/// The output of a command.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Creates an output that writes JSON or human-readable text.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Writes a value as JSON, or as formatted by `human`.
    pub fn value<T: Serialize>(self, value: &T, human: impl FnOnce(&T) -> String) -> Result<()> {
        let text = if self.json { serde_json::to_string_pretty(value)? } else { human(value) };
        self.line(&text)
    }

    /// Writes a list as a JSON array, or as a table with these columns.
    pub fn table<T: Serialize, const N: usize>(
        self,
        items: &[T],
        columns: [&str; N],
        row: impl Fn(&T) -> [String; N],
    ) -> Result<()> {
        if self.json {
            return self.line(&serde_json::to_string_pretty(items)?);
        }
        let header = columns.map(str::to_owned);
        let cells = items.iter().map(|item| row(item).map(|cell| escape_control(&cell)));
        let rows: Vec<[String; N]> = std::iter::once(header).chain(cells).collect();
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

    /// Writes bytes unchanged.
    pub fn raw(self, bytes: &[u8]) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }
}

/// Whether an error only means that the reader closed the pipe.
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
pub fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
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
    fn columns_line_up_and_end_without_spaces() {
        let rows = [["ID", "STATUS"], ["a-long-id", "ok"]].map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows), "ID         STATUS\na-long-id  ok");
    }

    #[test]
    fn a_cell_stays_on_its_line() {
        assert_eq!(escape_control("a\nb\tc \u{1b}[1m ä\\"), "a\\nb\\tc \\u{1b}[1m ä\\");
    }

    #[test]
    fn ages_and_sizes_read_well() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(at(0), at(59)), "59s");
        assert_eq!(age(at(0), at(3599)), "59m");
        assert_eq!(age(at(0), at(90_000)), "1d");
        assert_eq!(age(at(10), at(0)), "0s");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
    }
}
