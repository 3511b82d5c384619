//! The access log, one line per request, and counters of the same facts.
//!
//! ```text
//! 2026-11-15T05:19:07.123Z 203.0.113.9 8000-<sandbox id> GET /path 200 5316 12.3ms
//! ```
//!
//! Lines are gathered and written in pieces, so that a request costs no system call. Query strings
//! are left out: they carry secrets more often than answers. Requests to sandboxes that do not
//! exist have no line, so that a client cannot fill the log with invented names.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, Uri};
use jiff::Timestamp;
use pandastack_metrics::Page;
use pandastack_types::SandboxId;
use tokio_util::sync::CancellationToken;

use crate::limits::{ACCESS_LOG_BUFFER_BYTES, ACCESS_LOG_FILE_BYTES_MAX, ACCESS_LOG_OLD_FILES_MAX};
use crate::log_file::{Bounds, LogFile};

/// Longest time a line is held back.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Longest path in a line; the rest is cut.
const PATH_BYTES_MAX: usize = 512;
/// Statuses by their first digit; the rest is counted as zero.
const STATUS_CLASSES: usize = 6;

/// Maximum disk space of the log.
const BOUNDS: Bounds =
    Bounds { bytes_max: ACCESS_LOG_FILE_BYTES_MAX, old_files_max: ACCESS_LOG_OLD_FILES_MAX };

/// The access log and its counters.
#[derive(Default)]
pub struct AccessLog {
    file: Option<Mutex<LogFile>>,
    lines: Mutex<Lines>,
    requests: [AtomicU64; STATUS_CLASSES],
    bytes: AtomicU64,
}

impl AccessLog {
    /// Counts, and appends to a file if there is one.
    pub fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let file = path.map(|path| LogFile::open(path, BOUNDS)).transpose()?;
        Ok(Self { file: file.map(Mutex::new), ..Self::default() })
    }

    fn write(&self, entry: &Entry) {
        let class = usize::from(entry.status / 100);
        self.requests[if class < STATUS_CLASSES { class } else { 0 }].fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        if self.file.is_none() {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(entry, Timestamp::now());
        if lines.bytes.len() >= ACCESS_LOG_BUFFER_BYTES {
            let full = std::mem::replace(&mut lines.bytes, Vec::with_capacity(ACCESS_LOG_BUFFER_BYTES));
            drop(lines);
            self.append(&full);
        }
    }

    fn append(&self, lines: &[u8]) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.lock().unwrap_or_else(PoisonError::into_inner).append(lines) {
            tracing::warn!(%error, "cannot write the access log");
        }
    }

    /// Writes buffered lines.
    pub fn flush(&self) {
        let held = std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner).bytes);
        if !held.is_empty() {
            self.append(&held);
        }
    }

    /// Flushes periodically, until `stop`.
    pub async fn keep_flushed(&self, stop: CancellationToken) {
        while tokio::time::timeout(FLUSH_EVERY, stop.cancelled()).await.is_err() {
            self.flush();
        }
        self.flush();
    }

    /// Adds counters to a page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        let classes = self.requests.iter().enumerate().skip(1);
        page.counters(
            "pandastack_edge_requests_total",
            "Requests to sandboxes by class of status.",
            "status",
            classes.map(|(class, count)| (format!("{class}xx"), count.load(Ordering::Relaxed))),
        );
        page.counter(
            "pandastack_edge_sent_bytes_total",
            "Bytes of answers of sandboxes.",
            self.bytes.load(Ordering::Relaxed) as f64,
        );
    }
}

/// A line, written when it is dropped: at the end of the response, also after a failure.
pub struct Entry {
    pub(crate) log: Arc<AccessLog>,
    pub(crate) sandbox: Arc<SandboxId>,
    pub(crate) port: u16,
    pub(crate) client: Arc<str>,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) began: Instant,
}

/// Lines that are held back.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// The formatted time of the last line's second, cached: formatting it costs more than the rest
    /// of a line.
    second: String,
    second_number: i64,
}

impl Lines {
    fn push(&mut self, entry: &Entry, at: Timestamp) {
        let number = at.as_second();
        if number != self.second_number || self.second.is_empty() {
            self.second = at.strftime("%FT%T").to_string();
            self.second_number = number;
        }
        let path = entry.uri.path();
        let path = path.get(..PATH_BYTES_MAX).unwrap_or(path);
        let (sandbox, method) = (entry.sandbox.as_str(), entry.method.as_str());
        let millis = u64::from(at.subsec_millisecond().unsigned_abs());
        let tenths = u64::try_from(entry.began.elapsed().as_micros() / 100).unwrap_or(u64::MAX);
        // Formatted by hand: every request runs this, and `format!` costs several times as much.
        let line = &mut self.bytes;
        push(line, &[&self.second, "."]);
        push_number(line, millis, 3);
        push(line, &["Z ", &entry.client, " "]);
        push_number(line, entry.port.into(), 1);
        push(line, &["-", sandbox, " ", method, " ", path, " "]);
        push_number(line, entry.status.into(), 1);
        push(line, &[" "]);
        push_number(line, entry.bytes, 1);
        push(line, &[" "]);
        push_number(line, tenths / 10, 1);
        push(line, &["."]);
        push_number(line, tenths % 10, 1);
        push(line, &["ms\n"]);
    }
}

fn push(line: &mut Vec<u8>, pieces: &[&str]) {
    for piece in pieces {
        line.extend_from_slice(piece.as_bytes());
    }
}

/// Decimal digits, with zeros before them up to a width.
fn push_number(line: &mut Vec<u8>, mut number: u64, width: usize) {
    let begin = line.len();
    while number > 0 || line.len() - begin < width {
        line.push(b'0' + (number % 10) as u8);
        number /= 10;
    }
    line[begin..].reverse();
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.log.write(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_zero_padded_to_the_minimum_width() {
        let check = |number, width, expect: &str| {
            let mut line = b"x".to_vec();
            push_number(&mut line, number, width);
            assert_eq!(String::from_utf8(line).unwrap(), format!("x{expect}"));
        };
        check(0, 1, "0");
        check(7, 3, "007");
        check(1234, 3, "1234");
        check(u64::MAX, 1, "18446744073709551615");
    }
}
