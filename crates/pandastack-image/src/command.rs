//! Runs programs of the host: captures and bounds output, and converts failures to errors.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Command, Stdio};

use crate::error::ImageError;

/// A program may answer with at most this much; package indexes are the largest.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a failed program's output that go into the error.
const MESSAGE_BYTES_MAX: u64 = 4096;

/// Administrative programs are not on every user's path.
pub(crate) const EXTRA_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One run of a program of the host.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    purpose: String,
    command: Command,
}

impl Program {
    /// `purpose` completes "cannot ..." in the error that the user reads when the program fails.
    pub(crate) fn new(name: &str, purpose: impl Into<String>) -> Program {
        let mut command = Command::new(name);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:{EXTRA_PATH}")).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        Program { name: name.to_owned(), purpose: purpose.into(), command }
    }

    /// Like [`Program::new`], but everything it starts dies with the calling thread, even after
    /// `kill -9`: a dead build must not continue installing. `unshare` options beyond the process
    /// namespace go in `namespaces`.
    pub(crate) fn confined(name: &str, purpose: impl Into<String>, namespaces: &[&str]) -> Program {
        let program = Program::new("setpriv", purpose)
            .args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"])
            .args(namespaces)
            .arg(name);
        Program { name: name.to_owned(), ..program }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Program {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    pub(crate) fn current_dir(mut self, dir: &std::path::Path) -> Program {
        self.command.current_dir(dir);
        self
    }

    /// Runs it to the end and discards its output.
    pub(crate) fn run(self) -> Result<(), ImageError> {
        self.read().map(drop)
    }

    /// Runs it to the end and returns its standard output.
    pub(crate) fn read(mut self) -> Result<String, ImageError> {
        let io =
            |reason| ImageError::Io { action: "capture the output of", path: (&self.name).into(), reason };
        let mut stdout = tempfile::tempfile().map_err(io)?;
        let mut stderr = tempfile::tempfile().map_err(io)?;
        self.command.stdout(stdout.try_clone().map_err(io)?).stderr(stderr.try_clone().map_err(io)?);
        tracing::debug!(program = %self.name, command = ?self.command, "run");
        let status = self.command.status().map_err(|reason| ImageError::Spawn {
            program: self.name.clone(),
            purpose: self.purpose.clone(),
            reason,
        })?;
        if !status.success() {
            let said = tail(&mut stderr).or_else(|| tail(&mut stdout)).unwrap_or_default();
            return Err(ImageError::Program { program: self.name, purpose: self.purpose, status, said });
        }
        let mut text = String::new();
        stdout.seek(SeekFrom::Start(0)).map_err(io)?;
        stdout.take(OUTPUT_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
        Ok(text)
    }
}

/// The end of the output in `file`; empty if it is blank.
fn tail(file: &mut File) -> Option<String> {
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MESSAGE_BYTES_MAX))).ok()?;
    let mut bytes = Vec::new();
    file.take(MESSAGE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_purpose_and_quotes_the_program() {
        let error = Program::new("sh", "greet").args(["-c", "echo so sorry >&2; exit 3"]).run().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cannot greet") && text.contains("so sorry") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Program::new("no-such-program-here", "greet").run().unwrap_err();
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
        assert_eq!(error.kind(), crate::ErrorKind::Host);
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(Program::new("echo", "speak").arg("hi").read().unwrap(), "hi\n");
    }
}
