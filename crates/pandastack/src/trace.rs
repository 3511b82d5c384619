//! Logs of the server roles: to standard error or to a file of bounded size. Traces also go to an
//! OTLP collector, if one is configured.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, Layer};

use crate::otlp::{self, Export};

/// At this size a log file is renamed to `<name>.1`, replacing the previous one.
pub const LOG_FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Default log filter of servers; `PANDASTACK_LOG` overrides it.
pub const FILTER_SERVER: &str = "info,hyper=warn,sqlx=warn,netlink_packet_route=warn";

/// Environment variable for the log format: `text`, or `json` for one object per line.
pub const FORMAT_VARIABLE: &str = "PANDASTACK_LOG_FORMAT";

/// Whether lines of the log are JSON. Servers ask before they open anything: a wrong value is the first error.
pub fn json_requested() -> Result<bool> {
    match std::env::var(FORMAT_VARIABLE).as_deref() {
        Ok("json") => Ok(true),
        Ok("text") | Err(_) => Ok(false),
        Ok(other) => bail!("invalid {FORMAT_VARIABLE} `{other}`: expected text or json"),
    }
}

/// Sends this process's log to `file` or standard error, and its traces to a collector.
pub fn init(file: Option<&Path>, filter_default: &str, export: Option<Export>) -> Result<()> {
    let filter = EnvFilter::try_from_env("PANDASTACK_LOG").unwrap_or_else(|_| EnvFilter::new(filter_default));
    // Standard error may be a closed pipe; reporting that there would panic.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let json = json_requested()?;
    let lines = match file {
        Some(path) => {
            let log = BoundedLog::open(path)
                .with_context(|| format!("cannot open the log file {}", path.display()))?;
            let lines = lines.with_ansi(false).with_writer(Mutex::new(log));
            if json { lines.json().flatten_event(true).boxed() } else { lines.boxed() }
        }
        None => {
            let lines = lines.with_ansi(!json && io::stderr().is_terminal()).with_writer(io::stderr);
            if json { lines.json().flatten_event(true).boxed() } else { lines.boxed() }
        }
    };
    let spans = export.map(otlp::start).transpose()?;
    tracing_subscriber::registry().with(filter).with(lines).with(spans).init();
    Ok(())
}

/// The last `lines` lines of a log, for error messages; empty if there is no log.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

struct BoundedLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl BoundedLog {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max: LOG_FILE_BYTES_MAX })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        std::fs::rename(&self.path, old)?;
        let fresh = Self::open(&self.path)?;
        (self.file, self.bytes) = (fresh.file, fresh.bytes);
        Ok(())
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes + bytes.len() as u64 > self.bytes_max {
            self.rotate()?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Logs panics.
pub fn log_panics() {
    let earlier = std::panic::take_hook();
    let lock = Mutex::new(());
    std::panic::set_hook(Box::new(move |info| {
        let _one_at_a_time = lock.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::error!("panic: {info}");
        earlier(info);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_one_rotated_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut log = BoundedLog::open(&path).unwrap();
        log.bytes_max = 10;
        for line in ["12345678\n", "second\n", "third\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third\n");
        assert_eq!(std::fs::read_to_string(dir.path().join("a.log.1")).unwrap(), "second\n");
        assert_eq!(tail(&path, 5), "third");
    }
}
