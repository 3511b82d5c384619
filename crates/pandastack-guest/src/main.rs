//! The program that runs as PID 1 inside every machine: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    pandastack_guest::run()
}
