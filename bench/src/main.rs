//! Measurements of a running platform.
//!
//! `cargo xtask bench create` starts a platform of its own and runs this against it. Every figure is a list of samples;
//! the table shows percentiles, the raw samples go to a JSON file beside it. Nothing here decides whether a number is
//! good: the bars stand in `bench/README.md`.
//!
//! System calls go through `rustix`. The exception is `unshare`, for which only `nix` has a safe function.

#![forbid(unsafe_code)]

mod api;
mod apps;
mod bare;
mod first_plot;
mod functions;
mod git_host;
mod git_push;
mod http;
mod memory;
mod network;
mod plot;
mod postgres;
mod report;
mod samples;
mod scale;
mod soak;
mod state;
mod templates;
mod tenants;
mod vite;
mod wake;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use pandastack_client::{Client, Config};

/// Measurements.
#[derive(Debug, Parser)]
enum Command {
    /// Creates, forks, execs and memory
    Create(CreateArgs),
    /// Forks, snapshots, sleep and rollback
    State(StateArgs),
    /// Cold and warm calls of functions, deploys
    Functions(FunctionsArgs),
    /// Databases: creates, branches, wakes, the way through the edge, backups
    Postgres(PostgresArgs),
    /// Apps: wakes, deployments, the way through the edge
    Apps(AppsArgs),
    /// Network slots
    Network(NetworkArgs),
    /// Requests through the edge that wake sandboxes
    Wake(WakeArgs),
    /// Many lives, many machines, many streams, large files
    Scale(ScaleArgs),
    /// Template builds: rebuilds, the cost of a build over its commands, creates, images
    Templates(templates::Args),
    /// A hostile workspace beside a working one
    Tenants(tenants::Args),
    /// Hours of mixed work with faults
    Soak(soak::Args),
}

/// Arguments of `scale`.
#[derive(Debug, clap::Args)]
struct ScaleArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<scale::Part>,
    /// Idle sandboxes at once, instead of the plan's
    #[arg(long, value_name = "COUNT")]
    idle: Option<u32>,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Its runtime directory
    #[arg(long, value_name = "DIR")]
    runtime_dir: PathBuf,
    /// Prefix of its interfaces
    #[arg(long, value_name = "PREFIX")]
    net_prefix: String,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// Directory for plots
    #[arg(long, value_name = "DIR", default_value = "bench/plots")]
    plots: PathBuf,
}

/// Arguments of `postgres`.
#[derive(Debug, clap::Args)]
struct PostgresArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<postgres::Part>,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// First address of its network
    #[arg(long, value_name = "ADDRESS")]
    network: std::net::Ipv4Addr,
    /// `pgbench`, with TLS
    #[arg(long, value_name = "FILE")]
    pgbench: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Arguments of `apps`.
#[derive(Debug, clap::Args)]
struct AppsArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<apps::Part>,
    /// Address and port of the edge
    #[arg(long, value_name = "ADDRESS")]
    edge: String,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// First address of its network
    #[arg(long, value_name = "ADDRESS")]
    network: std::net::Ipv4Addr,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Arguments of `wake`.
#[derive(Debug, clap::Args)]
struct WakeArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Address and port of the edge
    #[arg(long, value_name = "ADDRESS")]
    edge: String,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Arguments of `network`.
#[derive(Debug, clap::Args)]
struct NetworkArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Arguments of `functions`.
#[derive(Debug, clap::Args)]
struct FunctionsArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Arguments of `state`.
#[derive(Debug, clap::Args)]
struct StateArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// Directory for plots
    #[arg(long, value_name = "DIR", default_value = "bench/plots")]
    plots: PathBuf,
}

/// Arguments of `create`.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Data directory of the measured platform, for the memory of its processes
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address of a second platform, without zygotes, to measure beside the first
    #[arg(long, value_name = "URL", requires = "plain_key")]
    plain_api: Option<String>,
    /// Key of the second platform
    #[arg(long, value_name = "KEY")]
    plain_key: Option<String>,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match Command::parse() {
        Command::Create(args) => create(args).await,
        Command::State(args) => state(args).await,
        Command::Functions(args) => functions(args).await,
        Command::Postgres(args) => postgres(args).await,
        Command::Apps(args) => apps(args).await,
        Command::Network(args) => network(&args),
        Command::Wake(args) => wake(args).await,
        Command::Scale(args) => scale(args).await,
        Command::Templates(args) => templates::run(args).await,
        Command::Tenants(args) => tenants::run(args).await,
        Command::Soak(args) => soak::run(args).await,
    }
}

async fn scale(args: ScaleArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let mut plan = if args.full { scale::Plan::FULL } else { scale::Plan::QUICK };
    plan.idle = args.idle.unwrap_or(plan.idle);
    let platform = scale::PlatformPaths {
        data_dir: args.data_dir,
        runtime_dir: args.runtime_dir,
        net_prefix: args.net_prefix,
    };
    let mut report = report::Report::new();
    let measured = scale::measure(&client, &platform, plan, &args.only, &mut report, &args.plots).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "scale")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn postgres(args: PostgresArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { postgres::Plan::FULL } else { postgres::Plan::QUICK };
    let (data_dir, network, pgbench) = (&*args.data_dir, args.network, args.pgbench);
    let setup = postgres::Setup { client: &client, data_dir, network, pgbench };
    let mut report = report::Report::new();
    let measured = postgres::measure(&setup, plan, &args.only, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "postgres")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn apps(args: AppsArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { apps::Plan::FULL } else { apps::Plan::QUICK };
    let setup =
        apps::Setup { client: &client, edge: &args.edge, data_dir: &args.data_dir, network: args.network };
    let mut report = report::Report::new();
    let measured = apps::measure(&setup, plan, &args.only, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "apps")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn functions(args: FunctionsArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { functions::Plan::FULL } else { functions::Plan::QUICK };
    let mut report = report::Report::new();
    let measured = functions::measure(&client, &args.data_dir, plan, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "functions")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn wake(args: WakeArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { wake::Plan::FULL } else { wake::Plan::QUICK };
    let mut report = report::Report::new();
    let measured = wake::measure(&client, &args.edge, &args.data_dir, plan, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "wake")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

fn network(args: &NetworkArgs) -> Result<()> {
    let plan = if args.full { network::Plan::FULL } else { network::Plan::QUICK };
    let mut report = report::Report::new();
    let measured = network::measure(plan, &mut report);
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "network")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn state(args: StateArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { state::Plan::FULL } else { state::Plan::QUICK };
    let mut report = report::Report::new();
    let measured = state::measure(&client, &args.data_dir, plan, &mut report, &args.plots).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "state")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn create(args: CreateArgs) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { api::Plan::FULL } else { api::Plan::QUICK };
    let mut report = report::Report::new();
    if let Some(data_dir) = &args.data_dir {
        let bare = bare::Bare::open(data_dir, "base").await.context("prepare the bare engine")?;
        let plain = args
            .plain_api
            .zip(args.plain_key)
            .map(|(api_url, key)| Client::new(Config { api_url, token: Some(key) }));
        let plain = plain.transpose()?;
        api::compare(&client, plain.as_ref(), bare, plan.restores, &mut report)
            .await
            .context("compare with the bare engine")?;
    }
    api::measure(&client, &plan, &mut report).await.context("measure the public API")?;
    if let Some(data_dir) = &args.data_dir {
        memory::measure(&client, data_dir, plan.idle_sandboxes, &mut report)
            .await
            .context("measure memory")?;
    }
    println!("{}", report.markdown());
    let path = report.write(&args.results, "create")?;
    eprintln!("raw samples: {}", path.display());
    Ok(())
}
