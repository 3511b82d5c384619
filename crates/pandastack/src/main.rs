//! The `pandastack` program: every server role and the command-line client.
//!
//! Parses arguments, connects the roles and formats output; other crates do the work. Data goes to
//! standard output, messages go to standard error, and an error ends with `hint:` lines that say
//! what to do next.
//!
//! System calls go through `rustix`, with two exceptions: `nix` for the user database and `libc` for the allocator.

#![deny(unsafe_code)]

mod cli;
mod client_config;
mod commands;
mod failure;
#[cfg(feature = "server")]
mod frozen_settings;
#[cfg(feature = "server")]
mod guest_settings;
#[cfg(feature = "server")]
mod heap_trim;
#[cfg(feature = "server")]
mod login_settings;
mod network_settings;
mod otlp;
mod output;
mod progress;
#[cfg(feature = "server")]
mod settings;
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
        Err(error) => return failure::report_usage(&error, cli::requested_output()),
    };
    let output = cli.output();
    match cli.command.run(output) {
        Ok(code) => code,
        Err(error) => failure::report(&error, output),
    }
}
