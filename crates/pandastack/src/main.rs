//! The `pandastack` program: every server role and the command-line client.
//!
//! Parses arguments, wires the roles together and talks to people; the work is done in other crates. Data goes to
//! standard output, talk to standard error, and an error ends with `hint:` lines that say what to do next.
//!
//! System calls go through `rustix`. It knows neither the user database, for which there is `nix`, nor the allocator, for which
//! there is `libc`.

#![deny(unsafe_code)]

mod cli;
#[cfg(feature = "server")]
mod client_config;
mod commands;
mod failure;
#[cfg(feature = "server")]
mod otlp;
mod output;
mod progress;
#[cfg(feature = "server")]
mod settings;
#[cfg(feature = "server")]
mod spare_memory;
#[cfg(feature = "server")]
mod supervise;
#[cfg(feature = "server")]
mod tls;
#[cfg(feature = "server")]
mod trace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::misused(&error, output::Output::new(cli::asks_for_json())),
    };
    let output = output::Output::new(cli.json);
    match cli.command.run(output) {
        Ok(code) => code,
        Err(error) => failure::report(&error, output),
    }
}
