//! `cargo xtask bench`: measurements on a platform of their own.

use std::path::PathBuf;
use std::process::{self, ExitCode};

use anyhow::Result;

use crate::host;
use crate::platform::Scratch;
use crate::program::{self, cargo};
use crate::tree;

/// An engine to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    Qemu,
    Firecracker,
}

/// Measurements.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Creates, forks, execs and memory, through the public API and on the bare engine
    Create {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
        /// Engine to measure; `firecracker` runs a toy guest, beside the same steps by hand
        #[arg(long, value_enum, default_value = "qemu")]
        engine: Engine,
    },
    /// Forks, snapshots, sleep and rollback, with plots
    State {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
    /// Cold and warm calls of functions, deploys, beside a create and a plain program
    Functions {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
    /// Databases: creates, branches, wakes, the way through the edge, backups
    Postgres {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
        /// Only these parts: creates, edge, branches, wakes, backups
        #[arg(long, value_name = "PART,...")]
        only: Option<String>,
    },
    /// Apps: wakes, pushes beside the build by hand, deployments under load, the way through the edge
    Apps {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
        /// Only these parts: wakes, edge, deploys, pushes
        #[arg(long, value_name = "PART,...")]
        only: Option<String>,
    },
    /// Network slots: taken from a filled pool, and made
    Network {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
    /// Many lives, many machines at once, many streams, large files, with plots
    Scale {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
        /// Only these parts: churn, idle, bursts, streams, transfer
        #[arg(long, value_name = "PART,...")]
        only: Option<String>,
        /// Idle sandboxes at once, instead of the plan's
        #[arg(long, value_name = "COUNT")]
        idle: Option<u32>,
    },
    /// Template builds: rebuilds, the cost of a build over its commands, creates, images
    Templates {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
    /// A hostile workspace does ten attacks beside a working one
    Tenants {
        /// Long enough for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
        /// Only these attacks: fork-bomb, outputs, lists, disk, connections, slow-bodies, creates, wakes,
        /// dns, functions
        #[arg(long, value_name = "ATTACK,...")]
        only: Option<String>,
    },
    /// Hours of mixed work with faults: errors, leaks and growth
    Soak {
        /// Length of the load; fractions are allowed
        #[arg(long, value_name = "HOURS")]
        hours: f64,
    },
    /// The edge and nginx in front of the same upstream, in turns
    Edge {
        /// Enough samples for percentiles that are worth publishing
        #[arg(long)]
        full: bool,
    },
}

/// Carries it out.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create { full, engine: Engine::Qemu } => run_create(full),
        Command::Create { engine: Engine::Firecracker, .. } => run_create_firecracker(),
        Command::State { full } => run_state(full),
        Command::Functions { full } => run_functions(full),
        Command::Postgres { full, only } => run_postgres(full, only),
        Command::Apps { full, only } => run_apps(full, only),
        Command::Network { full } => run_network(full),
        Command::Edge { full } => run_edge(full),
        Command::Scale { full, only, idle } => run_scale(full, only, idle),
        Command::Templates { full } => measure("templates", &["base"], full, |_, _| Ok(())),
        Command::Tenants { full, only } => run_tenants(full, only),
        Command::Soak { hours } => run_soak(hours),
    }
}

/// Builds the product and the benchmarks, together with the tests: built alone, they would have
/// other features of shared dependencies, and everything that depends on those would be compiled
/// twice.
fn build() -> Result<()> {
    program::run(cargo(&["build", "--release", "--workspace", "--bins", "--tests"]))
}

fn run_network(full: bool) -> Result<ExitCode> {
    build()?;
    let results = tree::root().join("bench/results");
    let mut bench = host::as_root(tree::target_dir().join("release/pandastack-bench"));
    bench.arg("network").args(full.then_some("--full")).arg("--results").arg(&results);
    program::run(bench)?;
    host::give_back(&results)?;
    Ok(ExitCode::SUCCESS)
}

/// Rounds of one proxy worth publishing.
const EDGE_ROUNDS_FULL: &str = "15";

fn run_edge(full: bool) -> Result<ExitCode> {
    build()?;
    let results = tree::root().join("bench/results");
    let mut bench = program::program(tree::target_dir().join("release/pandastack-bench-edge"));
    bench.arg("run").arg("--nginx").arg(unpacked("nginx", "usr/sbin/nginx")?);
    bench.args(full.then_some(["--rounds", EDGE_ROUNDS_FULL]).into_iter().flatten());
    bench.arg("--results").arg(&results);
    program::run(bench)?;
    measure("wake", &["base"], full, point_at_edge)
}

fn point_at_edge(bench: &mut process::Command, scratch: &Scratch) -> Result<()> {
    bench.arg("--edge").arg(scratch.platform()?.ready.api_url.trim_start_matches("http://"));
    Ok(())
}

fn run_apps(full: bool, only: Option<String>) -> Result<ExitCode> {
    // The packages of its sample are fetched by npm, and git pushes it.
    host::install_for_tests()?;
    measure("apps", &["base"], full, |bench, scratch| {
        bench.arg("--network").arg(scratch.network());
        bench.args(only.map(|parts| format!("--only={parts}")));
        point_at_edge(bench, scratch)
    })
}

/// A program of a Debian package, unpacked and not installed: a measurement must not leave a server running.
fn unpacked(package: &str, program_path: &str) -> Result<PathBuf> {
    let dir = tree::target_dir().join(package);
    let found = dir.join(program_path);
    if !found.exists() {
        std::fs::create_dir_all(&dir)?;
        let script = "apt-get download \"$1\" && dpkg -x \"$1\"_*.deb . && rm \"$1\"_*.deb";
        let mut unpack = program::program("sh");
        unpack.args(["-c", script, "unpack", package]).current_dir(&dir);
        program::run(unpack)?;
    }
    Ok(found)
}

/// Measures a platform of its own that has these templates. `more` adds arguments of that
/// measurement alone.
fn measure(
    name: &str,
    templates: &[&str],
    full: bool,
    more: impl FnOnce(&mut process::Command, &Scratch) -> Result<()>,
) -> Result<ExitCode> {
    build()?;
    host::install_for_product()?;
    // `tenants` measures more than one tenant, also on hosts without KVM.
    let scratch = Scratch::start(&["--allow-emulated-machines-between-tenants"])?;
    let platform = scratch.platform()?;
    for template in templates {
        platform.build_template(template)?;
    }
    // The processes of machines belong to root.
    let mut bench = platform.point(host::as_root(tree::target_dir().join("release/pandastack-bench")));
    bench.arg(name).args(full.then_some("--full"));
    bench.arg("--data-dir").arg(&platform.ready.data_dir);
    let results = tree::root().join("bench/results");
    bench.arg("--results").arg(&results);
    more(&mut bench, &scratch)?;
    program::run(bench)?;
    host::give_back(&results)?;
    for left in scratch.stop()? {
        eprintln!("warning: left behind: {left}");
    }
    Ok(ExitCode::SUCCESS)
}

fn run_state(full: bool) -> Result<ExitCode> {
    measure("state", &["base", "code-interpreter"], full, |bench, _| {
        bench.arg("--plots").arg(tree::root().join("bench/plots"));
        Ok(())
    })
}

fn run_scale(full: bool, only: Option<String>, idle: Option<u32>) -> Result<ExitCode> {
    measure("scale", &["base"], full, |bench, scratch| {
        let place = scratch.place();
        bench.arg("--runtime-dir").arg(&place.runtime_dir).arg("--net-prefix").arg(&place.net_prefix);
        bench.arg("--plots").arg(tree::root().join("bench/plots"));
        bench.args(only.map(|parts| format!("--only={parts}")));
        bench.args(idle.map(|count| format!("--idle={count}")));
        Ok(())
    })
}

fn run_tenants(full: bool, only: Option<String>) -> Result<ExitCode> {
    measure("tenants", &["base", "code-interpreter"], full, |bench, _| {
        bench.args(only.map(|attacks| format!("--only={attacks}")));
        Ok(())
    })
}

fn run_soak(hours: f64) -> Result<ExitCode> {
    measure("soak", &["base", "code-interpreter", "postgres-16"], false, |bench, scratch| {
        let place = scratch.place();
        bench.arg(format!("--hours={hours}"));
        bench.arg("--runtime-dir").arg(&place.runtime_dir).arg("--net-prefix").arg(&place.net_prefix);
        Ok(())
    })
}

fn run_functions(full: bool) -> Result<ExitCode> {
    measure("functions", &["code-interpreter"], full, |_, _| Ok(()))
}

fn run_postgres(full: bool, only: Option<String>) -> Result<ExitCode> {
    host::install_for_tests()?;
    measure("postgres", &["base", "postgres-16"], full, |bench, scratch| {
        bench.arg("--network").arg(scratch.network());
        bench.args(only.map(|parts| format!("--only={parts}")));
        // The pgbench of the tests' server does not support TLS.
        bench.arg("--pgbench").arg(unpacked("postgresql-15", "usr/lib/postgresql/15/bin/pgbench")?);
        Ok(())
    })
}

/// A create on the engine itself. Its guest needs no kernel, so this runs on every KVM, also on one that
/// cannot run Linux.
fn run_create_firecracker() -> Result<ExitCode> {
    let mut timing = cargo(&["test", "--release", "--package", "pandastack-engine-firecracker"]);
    timing.args(["--test", "it", "--", "--ignored", "--nocapture", "--test-threads=1", "timing_of_creates"]);
    program::run(timing)?;
    Ok(ExitCode::SUCCESS)
}

fn run_create(full: bool) -> Result<ExitCode> {
    build()?;
    host::install_for_product()?;
    let scratch = Scratch::start(&[])?;
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
    let results = tree::root().join("bench/results");
    bench.arg("--results").arg(&results);
    program::run(bench)?;
    host::give_back(&results)?;
    for left in scratch.stop()?.into_iter().chain(plain.stop()?) {
        eprintln!("warning: left behind: {left}");
    }
    Ok(ExitCode::SUCCESS)
}
