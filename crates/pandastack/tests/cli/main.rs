//! What a person sees: the real program against a small server that speaks the API's shapes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod apps;
mod bench;
mod commands;
mod copy;
mod reads;
#[cfg(feature = "server")]
mod reference;
mod server;
mod services;
mod several;
#[cfg(feature = "server")]
mod up;

use std::process::{Command, Output};

use server::Server;

/// The program, pointed at a server, in an empty home.
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

    /// Runs and compares everything a person and a script can see.
    #[track_caller]
    fn check(&self, args: &[&str], code: i32, stdout: &str, stderr: &str) {
        let output = self.run(args);
        let seen = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(seen, (Some(code), stdout.to_owned(), stderr.to_owned()), "pandastack {}", args.join(" "));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
