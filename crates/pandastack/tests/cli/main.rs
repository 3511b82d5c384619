//! Output of the real program against a scripted API server.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod api_errors;
mod apps;
mod bench;
mod commands;
mod conventions;
mod copy;
#[cfg(feature = "server")]
mod errors;
mod reads;
#[cfg(feature = "server")]
mod reference;
mod server;
mod services;
mod several;
#[cfg(feature = "server")]
mod up;

use std::path::Path;
use std::process::{Command, Output};

use server::Server;

/// The program with a scripted server and an empty home directory.
struct Program {
    server: Server,
    home: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        Self { server: Server::start(), home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pandastack"));
        command.env_clear().env("HOME", self.home.path()).env("PATH", "/usr/bin:/bin");
        command.env("PANDASTACK_API_URL", self.server.url()).env("PANDASTACK_API_KEY", server::KEY);
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the program and compares exit code, standard output and standard error.
    #[track_caller]
    fn check(&self, args: &[&str], code: i32, stdout: &str, stderr: &str) {
        let output = self.run(args);
        let seen = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(seen, (Some(code), stdout.to_owned(), stderr.to_owned()), "pandastack {}", args.join(" "));
    }
}

/// Compares a text with a committed file; `PANDASTACK_WRITE_GOLDEN=1` writes the file instead.
#[track_caller]
fn check_snapshot(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("PANDASTACK_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let (seen, expected): (Vec<_>, Vec<_>) = (text.lines().collect(), expected.lines().collect());
    let line = seen.iter().zip(&expected).take_while(|(seen, expected)| seen == expected).count();
    assert!(
        seen == expected,
        "{file} is stale from line {} on: it has {:?}, the program prints {:?}; to update it, run\n\
         PANDASTACK_WRITE_GOLDEN=1 cargo test --release -p pandastack --test cli",
        line + 1,
        expected.get(line),
        seen.get(line),
    );
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
