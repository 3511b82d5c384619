//! A hostile workspace beside a working one: its effect, and the memory that it leaves behind.
//!
//! The working tenant repeats the same work. Its neighbour first does that, too, with its full share, and
//! then one attack after another. Latencies during each attack are compared with those beside the
//! well-behaved neighbour.

mod attacks;
mod work;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum as _;
use pandastack_client::{Client, Config};
use pandastack_types::api::{CreateToken, CreateWorkspace, Quota, Role};

use crate::api::await_zygote;
use crate::memory::host_pss_mib;
use crate::report::Report;

pub use attacks::Attack;
use attacks::Attacker;
use work::Worker;

/// Arguments of `tenants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Long enough for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Only these attacks
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ATTACK")]
    only: Vec<Attack>,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Number of samples.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Length of each attack, and of the time before them.
    attack: Duration,
    /// Time after an attack at which memory is read again.
    settle: Duration,
}

impl Plan {
    /// Minutes on an emulated machine.
    const QUICK: Plan = Plan { attack: Duration::from_secs(15), settle: Duration::from_secs(15) };
    /// For publication.
    const FULL: Plan = Plan { attack: Duration::from_secs(120), settle: Duration::from_secs(60) };
}

/// Longest wait for the first zygote.
const ZYGOTE_WAIT_MAX: Duration = Duration::from_secs(300);
/// Share of each of the two workspaces: sandboxes, processors and memory.
const SANDBOXES: u64 = 12;
const PROCESSORS: u64 = 12;
const MEMORY_MB: u64 = 6 * 1024;
/// The working tenant's p99 during an attack, as a multiple of the same beside a well-behaved neighbour.
const P99_RATIO_MAX: f64 = 1.5;
/// Memory of all processes some time after an attack, as a multiple of that before it.
const MEMORY_RATIO_MAX: f64 = 1.1;
/// Phase in which the neighbour behaves.
const BESIDE_WORK: &str = "a working neighbour";

/// Runs the measurement and prints the results.
pub async fn run(args: Args) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { Plan::FULL } else { Plan::QUICK };
    let mut report = Report::new();
    let measured = measure(&client, &args.data_dir, plan, &args.only, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "tenants")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

/// Measures those attacks, or all of them.
async fn measure(
    operator: &Client,
    data_dir: &Path,
    plan: Plan,
    only: &[Attack],
    report: &mut Report,
) -> Result<()> {
    crate::scale::raise_descriptors()?;
    let (good, bad) = (workspace(operator, "good").await?, workspace(operator, "bad").await?);
    let worker = Worker::start(&good.client).await.context("start the working tenant")?;
    let neighbour = Worker::start(&bad.client).await.context("start its neighbour")?;
    await_zygote(data_dir, "base", ZYGOTE_WAIT_MAX).await?;
    let (mut theirs, until) = (Report::new(), Instant::now() + plan.attack);
    let (errors, _) = futures::join!(
        worker.work_until(until, BESIDE_WORK, report),
        neighbour.work_until(until, BESIDE_WORK, &mut theirs),
    );
    report.bar("errors beside a working neighbour", Some(errors as f64), 0.0);
    neighbour.stop(&bad.client).await?;
    let attacks: BTreeSet<Attack> = match only {
        [] => Attack::value_variants().iter().copied().collect(),
        only => only.iter().copied().collect(),
    };
    for attack in attacks {
        one_attack(attack, &worker, &bad, plan, report).await.with_context(|| attack.name())?;
    }
    worker.stop(&good.client).await?;
    for tenant in [good, bad] {
        operator.delete_workspace(&tenant.workspace).await?;
    }
    Ok(())
}

/// A workspace with a key of its own.
pub struct Tenant {
    workspace: String,
    client: Client,
    config: Config,
}

fn share() -> Quota {
    Quota {
        sandboxes: Some(SANDBOXES),
        cpu: Some(PROCESSORS),
        memory_mb: Some(MEMORY_MB),
        ..Quota::default()
    }
}

async fn workspace(operator: &Client, name: &str) -> Result<Tenant> {
    let id = format!("bench-{name}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let request = CreateWorkspace {
        id: id.parse().with_context(|| format!("`{id}` is no name of a workspace"))?,
        quota: Some(share()),
        default_visibility: None,
    };
    operator.create_workspace(&request).await.with_context(|| format!("create workspace {id}"))?;
    let key = CreateToken { role: Some(Role::Owner), ..CreateToken::default() };
    let key = operator.create_token(Some(&id), &key).await.context("create its key")?;
    let config = Config { api_url: operator.api_url().to_owned(), token: Some(key.token) };
    Ok(Tenant { workspace: id, client: Client::new(config.clone())?, config })
}

async fn one_attack(
    attack: Attack,
    worker: &Worker<'_>,
    bad: &Tenant,
    plan: Plan,
    report: &mut Report,
) -> Result<()> {
    let name = attack.name();
    eprintln!("{name}");
    let before = host_pss_mib();
    // A separate thread: the attacker's computation must not delay the measurement.
    let attacker = Attacker::prepare(attack, &bad.client).await?;
    let until = Instant::now() + plan.attack;
    let config = bad.config.clone();
    let running = std::thread::spawn(move || attacker.run_until(config, until));
    let errors = worker.work_until(until, &name, report).await;
    report.sample(&format!("memory of all processes during {name}"), "MiB", host_pss_mib());
    let joined = tokio::task::spawn_blocking(move || running.join()).await.context("join the attacker")?;
    let attacker = joined.map_err(|_| anyhow::anyhow!("the attacker panicked"))??;
    attacker.clean(&bad.client).await;
    tokio::time::sleep(plan.settle).await;
    let after = host_pss_mib();
    report.sample("memory of all processes before an attack", "MiB", before);
    report.sample(&format!("memory of all processes some time after {name}"), "MiB", after);
    report.bar(&format!("errors beside {name}"), Some(errors as f64), 0.0);
    for operation in work::OPERATIONS {
        let p99 = |phase: &str| report.percentile(&work::figure(operation, phase), 99.0);
        let ratio = p99(&name).zip(p99(BESIDE_WORK)).map(|(attacked, quiet)| attacked / quiet);
        report.bar(&format!("p99 of {operation} beside {name} / {BESIDE_WORK}"), ratio, P99_RATIO_MAX);
    }
    report.bar(&format!("memory some time after {name} / before"), Some(after / before), MEMORY_RATIO_MAX);
    Ok(())
}
