//! Hours of mixed work with faults: errors, leaks and growth.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{
    CreateDatabase, DatabaseQuery, ForkSandbox, FunctionSettings, InvokeFunction, Keep,
};

use crate::api::{create, delete, exec, ms_since};
use crate::functions::{EMPTY, deploy_new};
use crate::memory::host_pss_mib;
use crate::report::Report;
use crate::scale::PlatformPaths;

/// Pause between two rounds of a load.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval at which memory is read.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of faults: the agent and control are killed in turns.
const FAULT_INTERVAL: Duration = Duration::from_secs(600);
/// Errors so long after a fault are the fault's.
const FAULT_ERRORS: Duration = Duration::from_secs(30);
/// Memory at the end as a multiple of that in the beginning, once warm.
const GROWTH_MAX: f64 = 1.1;
/// Longest wait for the database to be ready.
const DATABASE_WAIT_MAX: Duration = Duration::from_secs(600);

/// Arguments of `soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Length of the load
    #[arg(long, value_name = "HOURS")]
    hours: f64,
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
}

/// Runs the measurement and prints the results.
pub async fn run(args: Args) -> Result<()> {
    let client = Client::from_environment()?;
    let length = Duration::try_from_secs_f64(args.hours * 3600.0).context("read `--hours`")?;
    let Args { data_dir, runtime_dir, net_prefix, .. } = args;
    let platform = PlatformPaths { data_dir, runtime_dir, net_prefix };
    let mut report = Report::new();
    let measured = measure(&client, &platform, length, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "soak")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

/// Load, for so long.
async fn measure(
    client: &Client,
    platform: &PlatformPaths,
    length: Duration,
    report: &mut Report,
) -> Result<()> {
    delete(client, &create(client, "base").await?.id).await?;
    let before = platform.footprint(client).await?;
    let others = sandboxes(client).await?;
    let function = deploy_new(client, "soak", EMPTY, FunctionSettings::default(), None).await?;
    let database = database(client).await?;
    let began = Instant::now();
    let until = began + length;
    let faults = std::cell::Cell::new(None);
    let query = DatabaseQuery { sql: "select count(*) from pg_class".to_owned(), ..DatabaseQuery::default() };
    let call = InvokeFunction::default();
    let loads = async {
        futures::join!(
            load("life", until, &faults, || life(client)),
            load("fork", until, &faults, || fork(client)),
            load("sleep and wake", until, &faults, || sleep(client)),
            load("call of a function", until, &faults, || async {
                Ok(client.invoke_function(&function.name, &call, None).await.map(drop)?)
            }),
            load("query of a database", until, &faults, || async {
                Ok(client.query_database(&database, &query).await.map(drop)?)
            }),
        )
    };
    let (done, _, samples) = futures::join!(loads, break_servers(platform, until, &faults), watch(until));
    let (lives, forks, sleeps, calls, queries) = done;
    for load in [lives, forks, sleeps, calls, queries] {
        load.took_ms.iter().for_each(|took| report.sample(load.name, "ms", *took));
        report.sample(&format!("{}: errors after a fault", load.name), "", load.excused as f64);
        report.bar(&format!("{}: errors", load.name), Some(load.errors as f64), 0.0);
    }
    samples.iter().for_each(|mib| report.sample("memory of all processes", "MiB", *mib));
    let (first, last) = (quarter(&samples, 1), quarter(&samples, 3));
    report.bar("memory in the last quarter / in the second", last.zip(first).map(|(l, f)| l / f), GROWTH_MAX);
    client.delete_function(&function.name).await?;
    client.delete_database(&database).await?;
    // A delete that a fault cut off was reported as an error; its sandbox is no leak.
    for sandbox in sandboxes(client).await?.difference(&others) {
        delete(client, sandbox).await?;
    }
    for (kind, more) in platform.leaks(client, &before).await? {
        report.bar(&format!("leaked {kind}"), Some(more as f64), 0.0);
    }
    Ok(())
}

/// Sandboxes that exist now.
async fn sandboxes(client: &Client) -> Result<BTreeSet<SandboxId>> {
    let listed = client.list_sandboxes().await?;
    Ok(listed.into_iter().map(|sandbox| sandbox.id).collect())
}

/// Mean of a quarter of the samples.
fn quarter(samples: &[f64], number: usize) -> Option<f64> {
    let size = samples.len() / 4;
    let part = samples.get(number * size..(number + 1) * size).filter(|part| !part.is_empty())?;
    Some(part.iter().sum::<f64>() / part.len() as f64)
}

struct Load {
    name: &'static str,
    took_ms: Vec<f64>,
    errors: u64,
    /// Errors soon after a fault.
    excused: u64,
}

/// The time of the last fault.
type LastFault = std::cell::Cell<Option<Instant>>;

async fn load<F: Future<Output = Result<()>>>(
    name: &'static str,
    until: Instant,
    faults: &LastFault,
    once: impl Fn() -> F,
) -> Load {
    let mut load = Load { name, took_ms: Vec::new(), errors: 0, excused: 0 };
    while Instant::now() < until {
        let began = Instant::now();
        match once().await {
            Ok(()) => load.took_ms.push(ms_since(began)),
            Err(_) if faults.get().is_some_and(|at| at.elapsed() < FAULT_ERRORS) => load.excused += 1,
            Err(error) => {
                load.errors += 1;
                eprintln!("{name}: {error:#}");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    load
}

async fn life(client: &Client) -> Result<()> {
    let sandbox = create(client, "base").await?.id;
    let lived = exec(client, &sandbox, "echo x > /root/x && cat /root/x").await;
    delete(client, &sandbox).await?;
    ensure!(lived?.stdout == "x\n", "a file was lost");
    Ok(())
}

async fn fork(client: &Client) -> Result<()> {
    let parent = create(client, "base").await?.id;
    let forked = async {
        exec(client, &parent, "echo parent > /root/x").await?;
        let child = client.fork_sandbox(&parent, &ForkSandbox::default()).await?.id;
        let read = exec(client, &child, "cat /root/x").await;
        delete(client, &child).await?;
        ensure!(read?.stdout == "parent\n", "the child lacks its parent's file");
        Ok(())
    };
    let forked = forked.await;
    delete(client, &parent).await?;
    forked
}

async fn sleep(client: &Client) -> Result<()> {
    let sandbox = create(client, "base").await?.id;
    let woken = async {
        client.hibernate_sandbox(&sandbox, Keep::Memory).await?;
        exec(client, &sandbox, "true").await
    };
    let woken = woken.await;
    delete(client, &sandbox).await?;
    woken.map(drop)
}

async fn database(client: &Client) -> Result<pandastack_types::DatabaseId> {
    let database = client.create_database(&CreateDatabase::default()).await?.id;
    let query = DatabaseQuery { sql: "select 1".to_owned(), ..DatabaseQuery::default() };
    let deadline = Instant::now() + DATABASE_WAIT_MAX;
    while let Err(error) = client.query_database(&database, &query).await {
        ensure!(Instant::now() < deadline, "the database does not answer: {error:#}");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(database)
}

/// Kills the agent and control in turns; what supervises them starts them again.
async fn break_servers(platform: &PlatformPaths, until: Instant, faults: &LastFault) {
    for role in ["agent", "control"].into_iter().cycle() {
        let next = Instant::now() + FAULT_INTERVAL;
        tokio::time::sleep_until(next.min(until).into()).await;
        if next >= until {
            return;
        }
        faults.set(Some(Instant::now()));
        if let Err(error) = platform.kill(role).with_context(|| format!("kill {role}")) {
            eprintln!("{error:#}");
        }
    }
}

/// Memory of all processes, from time to time.
async fn watch(until: Instant) -> Vec<f64> {
    let mut samples = Vec::new();
    while Instant::now() < until {
        samples.push(host_pss_mib());
        tokio::time::sleep_until((Instant::now() + SAMPLE_INTERVAL).min(until).into()).await;
    }
    samples
}
