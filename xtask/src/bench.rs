//! `cargo xtask bench`: measurements on a platform of their own.

use std::process::ExitCode;

use anyhow::Result;

use crate::host;
use crate::platform::Scratch;
use crate::program::{self, cargo};
use crate::{tree, up};

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Creates, forks, execs and memory, through the public API and on the bare engine
    Create {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
    /// Forks, snapshots, sleep and rollback, with plots
    State {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
}

/// Carries it out.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create { full } => create(full),
        Command::State { full } => state(full),
    }
}

fn state(full: bool) -> Result<ExitCode> {
    up::build_product()?;
    program::run(cargo(&["build", "--release", "--package", "pandastack-bench"]))?;
    host::install_for_product()?;
    let scratch = Scratch::start()?;
    let platform = scratch.platform()?;
    platform.build_template("base")?;
    let mut bench = platform.point(host::as_root(tree::target_dir().join("release/pandastack-bench")));
    bench.arg("state").args(full.then_some("--full"));
    bench.arg("--data-dir").arg(&platform.ready.data_dir);
    bench.arg("--results").arg(tree::root().join("bench/results"));
    bench.arg("--plots").arg(tree::root().join("bench/plots"));
    program::run(bench)?;
    for left in scratch.stop()? {
        eprintln!("warning: left behind: {left}");
    }
    Ok(ExitCode::SUCCESS)
}

fn create(full: bool) -> Result<ExitCode> {
    up::build_product()?;
    program::run(cargo(&["build", "--release", "--package", "pandastack-bench"]))?;
    host::install_for_product()?;
    let scratch = Scratch::start()?;
    let platform = scratch.platform()?;
    for name in ["base", "code-interpreter"] {
        platform.build_template(name)?;
    }
    let plain = Scratch::start_second(&["--no-zygotes"])?;
    plain.platform()?.build_template("base")?;
    // The bare engine is driven directly, which takes root as the agent does.
    let mut bench = platform.point(host::as_root(tree::target_dir().join("release/pandastack-bench")));
    bench.arg("create").args(full.then_some("--full"));
    bench.arg("--data-dir").arg(&platform.ready.data_dir);
    bench.arg("--plain-api").arg(&plain.platform()?.ready.api_url);
    bench.arg("--plain-key").arg(&plain.platform()?.ready.token);
    bench.arg("--results").arg(tree::root().join("bench/results"));
    program::run(bench)?;
    for left in scratch.stop()?.into_iter().chain(plain.stop()?) {
        eprintln!("warning: left behind: {left}");
    }
    Ok(ExitCode::SUCCESS)
}
