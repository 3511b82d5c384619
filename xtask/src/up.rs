//! `cargo xtask up`: from a bare machine to a running platform that has proved itself.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::platform::Platform;
use crate::program::{self, cargo, program, read};
use crate::steps::Steps;
use crate::{host, python};

/// The first lines of the program in the README.
const FIRST_PROGRAM: &str = include_str!("first_program.py");
/// Templates that are ready when the platform is.
const TEMPLATES: [&str; 2] = ["base", "code-interpreter"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address of the API
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where everything is kept
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// More arguments for `pandastack up`
    #[arg(last = true)]
    more: Vec<String>,
}

/// Builds the `pandastack` program.
pub fn build_product() -> Result<()> {
    program::run(cargo(&["build", "--release", "--package", "pandastack"]))
}

/// Everything up to a platform that has proved itself.
fn bring_up(args: Args, steps: &mut Steps) -> Result<Platform> {
    steps.step("build", build_product)?;
    steps.step("install what is missing", host::install_for_product)?;
    let platform = steps.step("start the platform", || Platform::start(&pass_on(args)))?;
    for name in TEMPLATES {
        steps.step(&format!("template {name}"), || platform.build_template(name))?;
    }
    let python = steps.step("Python SDK", python::ensure)?;
    steps.step("first program", || {
        let mut command = platform.point(program(&python));
        command.args(["-c", FIRST_PROGRAM]);
        let printed = read(command).context("run the first program")?;
        print!("{printed}");
        ensure!(printed.trim() == "1024", "the first program printed {printed:?} instead of 1024");
        Ok(())
    })?;
    Ok(platform)
}

/// Carries it out and serves.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut steps = Steps::default();
    let outcome = bring_up(args, &mut steps);
    eprintln!("\n{}", steps.table());
    let platform = outcome?;
    let bin = crate::tree::pandastack();
    eprintln!("\nPandaStack is up at {}. Ctrl-C stops it; sandboxes stay.", platform.ready.api_url);
    eprintln!("Try, in another terminal:\n");
    eprintln!("  {} run -- uname -a", bin.display());
    eprintln!("  {} sandbox create --template code-interpreter", bin.display());
    platform.wait()?;
    Ok(ExitCode::SUCCESS)
}

fn pass_on(args: Args) -> Vec<String> {
    let pair =
        |flag: &str, value: Option<String>| value.map(|value| [flag.to_owned(), value]).into_iter().flatten();
    pair("--listen", args.listen).chain(pair("--data-dir", args.data_dir)).chain(args.more).collect()
}
