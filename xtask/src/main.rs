//! Every developer command: `cargo xtask up|test|fuzz|bench|dist|openapi|errors|template|tidy`.
//!
//! This program orchestrates others (cargo, the `pandastack` program, pip, npm) and links none of
//! the product, so that it compiles in seconds on a bare machine and can then show what it does.

#![forbid(unsafe_code)]

mod azurite;
mod bench;
mod checkout;
mod console;
mod errors;
mod fuzz;
mod host;
mod leaks;
mod login_provider;
mod openapi;
mod platform;
mod postgres;
mod program;
mod python;
mod qemu;
mod release;
mod steps;
mod template;
mod test;
mod tidy;
mod tree;
mod up;

use std::process::ExitCode;

use clap::Parser;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Developer commands of PandaStack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Command {
    /// Install what is missing, build, start the platform, run the first program, serve until Ctrl-C
    Up(up::Args),
    /// Run every test, real machines included
    Test(test::Args),
    /// Fuzz one parser, or all of them one after the other
    Fuzz(fuzz::Args),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Command),
    /// Write the files of a release
    Dist(release::Args),
    /// Regenerate openapi/pandastack-v1.json
    Openapi,
    /// Write the generated parts of docs/reference/errors.md
    Errors,
    /// List, lock and build the catalogue's root file systems
    #[command(subcommand)]
    Template(template::Command),
    /// Format, and check what no compiler checks
    Tidy(tidy::Args),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Up(args) => up::run(args),
        Command::Test(args) => test::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Dist(args) => release::run(args),
        Command::Openapi => openapi::run(),
        Command::Errors => errors::run(),
        Command::Template(command) => template::run(command),
        Command::Tidy(args) => tidy::run(args),
    };
    outcome.unwrap_or_else(|error| {
        if program::interrupted() {
            eprintln!("Interrupted.");
            return ExitCode::from(INTERRUPTED);
        }
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
