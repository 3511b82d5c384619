//! `cargo xtask up`: from a bare machine to a running platform that has proved itself.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::platform::Platform;
use crate::program::{self, cargo, program, read};
use crate::steps::Steps;
use crate::{console, host, python, tree};

/// A first program, like those of the documentation.
const FIRST_PROGRAM: &str = include_str!("first_program.py");
/// Templates that are ready when the platform is.
const TEMPLATES: [&str; 2] = ["base", "code-interpreter"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address of the API
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// More arguments for `pandastack up`
    #[arg(last = true)]
    more: Vec<String>,
}

/// Builds the `pandastack` program.
pub fn build_product() -> Result<()> {
    console::build()?;
    program::run(cargo(&["build", "--release", "--package", "pandastack"]))
}

/// All steps up to a running platform.
fn bring_up(args: Args, steps: &mut Steps) -> Result<Platform> {
    host::require_rights_and_space()?;
    steps.step("build", build_product)?;
    steps.step("install what is missing", host::install_for_product)?;
    steps.step("start the platform", || Platform::start(&pass_on(args)))
}

/// Makes the platform ready for use and uses it.
fn prove(platform: &Platform, steps: &mut Steps) -> Result<()> {
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
    })
}

/// Carries it out and serves.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut steps = Steps::default();
    program::outlive_interrupts()?;
    let outcome = bring_up(args, &mut steps);
    let proved = outcome.and_then(|platform| match prove(&platform, &mut steps) {
        Ok(()) => Ok(platform),
        Err(error) => {
            // The first error is the one to see.
            let _ = platform.stop();
            Err(error)
        }
    });
    eprintln!("\n{}", steps.table());
    let platform = proved?;
    print_next_steps(&platform);
    platform.wait()?;
    Ok(ExitCode::SUCCESS)
}

fn print_next_steps(platform: &Platform) {
    let (url, bin) = (&platform.ready.api_url, tree::pandastack());
    if platform.ready.already_up {
        eprintln!("\nPandaStack is up at {url}, started by another `up`.");
    } else {
        eprintln!("\nPandaStack is up at {url}. Ctrl-C stops it; sandboxes keep running.");
    }
    eprintln!("The web console is at {url}/; sign in with the key in ~/.config/pandastack/config.json.");
    eprintln!("Try, in another terminal:\n");
    eprintln!("  sudo ln -sf {} /usr/local/bin/pandastack", bin.display());
    eprintln!("  pandastack run -- uname -a");
    eprintln!("  pandastack run -t code-interpreter -- python -c 'print(2 ** 10)'");
    eprintln!("  pandastack sandbox create --template code-interpreter\n");
    eprintln!("For more, see docs/tutorials/quickstart.md.");
}

fn pass_on(args: Args) -> Vec<String> {
    let pair =
        |flag: &str, value: Option<String>| value.map(|value| [flag.to_owned(), value]).into_iter().flatten();
    pair("--listen", args.listen).chain(pair("--data-dir", args.data_dir)).chain(args.more).collect()
}
