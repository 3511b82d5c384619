//! Functions: the overhead of cold and warm calls, calls per second, redeploy time, and schedule
//! lateness.
//!
//! The baselines are measured in the same run, interleaved: creating a sandbox from the function's
//! template, and running the same handler as a plain program through exec.

use std::io::Cursor;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use pandastack_client::Client;
use pandastack_types::ScheduleId;
use pandastack_types::api::{
    CreateFunction, CreateSchedule, DeployStatus, Function, FunctionRunStatus, FunctionSettings,
    InvokeFunction, Isolation, Run, RunStatus, Runtime, ScheduleRun, ScheduleTiming,
};

use crate::api::{create, delete, exec, ms_since};
use crate::report::Report;

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Cold calls, each beside a create and a plain program.
    pub cold: u32,
    /// Warm calls, one after another.
    pub warm: u32,
    /// Seconds of calls as fast as they go.
    pub sustained_seconds: u64,
    /// Deploys with dependencies that did not change.
    pub deploys: u32,
    /// Times at which each of several schedules calls a function.
    pub fires: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan = Plan { cold: 15, warm: 200, sustained_seconds: 10, deploys: 5, fires: 10 };
    /// For publication.
    pub const FULL: Plan = Plan { cold: 60, warm: 2000, sustained_seconds: 60, deploys: 20, fires: 60 };
}

/// Template whose Python has pandas.
const TEMPLATE: &str = "code-interpreter";
/// Imports pandas once, and does a little with it in each call.
const PANDAS: &str = "import pandas\n\n\ndef handler(event, context):\n    \
                      return int(pandas.DataFrame({'n': range(10)})['n'].sum())\n";
/// The same work as a plain program.
const PROGRAM: &str = "import pandas\nprint(int(pandas.DataFrame({'n': range(10)})['n'].sum()))\n";
/// Does nothing, in `fetch` style.
pub const EMPTY: &str = "def fetch(request):\n    return ''\n";
/// Callers at once when as many calls as possible are made.
const CALLERS: usize = 8;
/// Machines that these share.
const MACHINES: u32 = 2;
/// Schedules that are due at the same times.
const SCHEDULES: usize = 5;
/// The first of those times, which still have to make the machines: all due at once need more than one of them.
const WARMING_FIRES: u32 = 2;
/// Seconds between two of those times.
const FIRE_EVERY_SECONDS: u64 = 2;
/// Longest wait for a deploy, or for the end of an idle machine.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Interval between two checks of either.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Measures all of it.
pub async fn measure(client: &Client, data_dir: &Path, plan: Plan, report: &mut Report) -> Result<()> {
    cold(client, plan, report).await.context("cold calls")?;
    warm(client, data_dir, plan, report).await.context("warm calls")?;
    deploys(client, plan, report).await.context("deploys")?;
    fires(client, plan, report).await.context("schedules")?;
    compare(report);
    Ok(())
}

fn compare(report: &mut Report) {
    let own = report.median("cold call, handler's own time");
    let base = report.median("create, beside cold calls").zip(own).map(|(create, own)| create + own);
    let ratio = report.median("cold call with pandas").zip(base).map(|(cold, base)| cold / base);
    report.bar("cold call / (create + handler's own time)", ratio, 2.0);
    report.bar(
        "warm call over the handler's own time, ms",
        report.median("warm call, over the handler's own time"),
        3.0,
    );
    let spacing = report.median("warm calls a second").map(|rate| 1000.0 / rate);
    report.bar("ms between warm calls at full speed (200 a second)", spacing, 5.0);
    report.bar(
        "deploy with unchanged dependencies, s",
        report.median("deploy, dependencies unchanged").map(|ms| ms / 1000.0),
        3.0,
    );
    report.bar(
        "warm call of a schedule answered, ms after its time, p99",
        report.percentile("its warm call answered, after its time", 99.0),
        250.0,
    );
    report.bar("machines of an idle function", report.median("machines of an idle function"), 0.0);
}

async fn cold(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let settings = FunctionSettings { isolation: Some(Isolation::Fresh), ..FunctionSettings::default() };
    let function = deploy_new(client, "bench-cold", PANDAS, settings, None).await?;
    let beside = create(client, TEMPLATE).await?;
    client.write_file(&beside.id, "/root/handler.py", PROGRAM.as_bytes().to_vec()).await?;
    for round in 0..plan.cold + 3 {
        let began = Instant::now();
        let run = invoke(client, &function).await?;
        let took_ms = ms_since(began);
        let began = Instant::now();
        let sandbox = create(client, TEMPLATE).await?;
        let create_ms = ms_since(began);
        delete(client, &sandbox.id).await?;
        let began = Instant::now();
        let printed = exec(client, &beside.id, "python3 /root/handler.py").await?;
        let exec_ms = ms_since(began);
        ensure!(printed.stdout.trim() == "45", "the program printed {:?}", printed.stdout);
        ensure!(run.cold && run.output == Some(45.into()), "{run:?}");
        // The first ones restore the snapshot; then it has a zygote, as any snapshot that is used often.
        let name = if round < 3 { "cold call with pandas, first ones" } else { "cold call with pandas" };
        report.sample(name, "ms", took_ms);
        if round >= 3 {
            report.sample("cold call, until the machine was there", "ms", run.wait_ms);
            report.sample("cold call, handler's own time", "ms", run.duration_ms);
            report.sample("create, beside cold calls", "ms", create_ms);
            report.sample("python3 handler.py through exec", "ms", exec_ms);
        }
    }
    delete(client, &beside.id).await?;
    Ok(client.delete_function(&function.name).await?)
}

async fn warm(client: &Client, data_dir: &Path, plan: Plan, report: &mut Report) -> Result<()> {
    let before = zygotes(data_dir);
    let settings = FunctionSettings {
        idle_seconds: Some(2),
        max_instances: Some(MACHINES),
        ..FunctionSettings::default()
    };
    let function = deploy_new(client, "bench-warm", EMPTY, settings, None).await?;
    invoke(client, &function).await?;
    for _ in 0..plan.warm {
        let began = Instant::now();
        let run = invoke(client, &function).await?;
        let took_ms = ms_since(began);
        ensure!(!run.cold, "a machine went away between two calls");
        report.sample("warm call", "ms", took_ms);
        report.sample("warm call, handler's own time", "ms", run.duration_ms);
        report.sample("warm call, over the handler's own time", "ms", took_ms - run.duration_ms);
    }
    let until = Instant::now() + Duration::from_secs(plan.sustained_seconds);
    let callers = (0..CALLERS).map(|_| call_until(client, &function, until));
    let began = Instant::now();
    let made: u64 = futures::future::try_join_all(callers).await?.into_iter().sum();
    report.sample("warm calls a second", "1/s", made as f64 / began.elapsed().as_secs_f64());
    let deadline = Instant::now() + WAIT_MAX;
    while client.function_metrics(&function.name, 1).await?.instances > 0 || !machines(data_dir).is_empty() {
        ensure!(Instant::now() < deadline, "the machines of an idle function did not end");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    report.sample("machines of an idle function", "", machines(data_dir).len() as f64);
    // A frequently used snapshot keeps a zygote until it has been unused for a while.
    let kept = zygotes(data_dir).into_iter().filter(|pid| !before.contains(pid)).count();
    report.sample("zygotes of a function that was busy a moment ago", "", kept as f64);
    Ok(client.delete_function(&function.name).await?)
}

async fn call_until(client: &Client, function: &Function, until: Instant) -> Result<u64> {
    let mut made = 0;
    while Instant::now() < until {
        invoke(client, function).await?;
        made += 1;
    }
    Ok(made)
}

async fn deploys(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let requirements = Some("--no-index\n");
    let settings = FunctionSettings::default();
    let function = deploy_new(client, "bench-deploy", EMPTY, settings, requirements).await?;
    for round in 0..plan.deploys {
        let code = format!("{EMPTY}# {round}\n");
        let began = Instant::now();
        deploy(client, &function.name, bundle(&code, requirements)?).await?;
        report.sample("deploy, dependencies unchanged", "ms", ms_since(began));
    }
    let newest = client.function_versions(&function.name).await?.into_iter().next();
    ensure!(newest.is_some_and(|version| version.dependencies_reused), "dependencies were installed again");
    Ok(client.delete_function(&function.name).await?)
}

async fn fires(client: &Client, plan: Plan, report: &mut Report) -> Result<()> {
    let function = deploy_new(client, "bench-fire", EMPTY, FunctionSettings::default(), None).await?;
    invoke(client, &function).await?;
    let mut schedules = Vec::new();
    for number in 0..SCHEDULES {
        let timing = ScheduleTiming { every_seconds: Some(FIRE_EVERY_SECONDS), ..ScheduleTiming::default() };
        let request = CreateSchedule {
            name: format!("bench-{number}"),
            timing,
            function_id: Some(function.name.clone()),
            ..CreateSchedule::default()
        };
        schedules.push(client.create_schedule(&request).await?.id);
    }
    for schedule in schedules {
        let newest_first = ended_runs(client, &schedule, plan.fires + WARMING_FIRES).await?;
        client.delete_schedule(&schedule).await?;
        for run in newest_first.into_iter().take(plan.fires as usize) {
            let after = |at: jiff::Timestamp| at.duration_since(run.scheduled_for).as_secs_f64() * 1e3;
            report.sample("run of a schedule begun, after its time", "ms", after(run.started_at));
            let ended = run.ended_at.context("a run that succeeded has no end")?;
            report.sample("its warm call answered, after its time", "ms", after(ended));
        }
    }
    Ok(client.delete_function(&function.name).await?)
}

/// The first runs of a schedule, once there are as many and they have ended.
async fn ended_runs(client: &Client, schedule: &ScheduleId, count: u32) -> Result<Vec<ScheduleRun>> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let runs = client.list_schedule_runs(schedule, count).await?;
        if let Some(run) = runs.iter().find(|run| run.status == RunStatus::Error) {
            bail!("a run failed: {:?}", run.error);
        }
        let ended = runs.iter().filter(|run| run.status == RunStatus::Success).count();
        if ended >= count as usize {
            return Ok(runs);
        }
        ensure!(Instant::now() < deadline, "{ended} of {count} runs ended");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Creates a function and deploys it.
pub async fn deploy_new(
    client: &Client,
    name: &str,
    code: &str,
    settings: FunctionSettings,
    requirements: Option<&str>,
) -> Result<Function> {
    let request = CreateFunction {
        name: format!("{name}-{}", uuid::Uuid::new_v4()),
        runtime: Runtime::Python,
        entrypoint: Some("main.py".to_owned()),
        template: Some(TEMPLATE.to_owned()),
        settings,
        ..CreateFunction::default()
    };
    let function = client.create_function(&request).await?;
    deploy(client, &function.name, bundle(code, requirements)?).await
}

async fn deploy(client: &Client, name: &str, bundle: Vec<u8>) -> Result<Function> {
    let mut function = client.deploy_function(name, bundle).await?;
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        match function.deploy_status {
            Some(DeployStatus::Building) if Instant::now() < deadline => {}
            Some(DeployStatus::Ready) => return Ok(function),
            _ => bail!("{name} was not deployed: {:?}", function.deploy_error),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        function = client.get_function(name).await?;
    }
}

fn bundle(code: &str, requirements: Option<&str>) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in [("main.py", Some(code)), ("requirements.txt", requirements)] {
        let Some(content) = content else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, Cursor::new(content))?;
    }
    Ok(archive.into_inner()?.finish()?)
}

async fn invoke(client: &Client, function: &Function) -> Result<Run> {
    let run = client.invoke_function(&function.name, &InvokeFunction::default(), None).await?;
    ensure!(run.status == FunctionRunStatus::Success, "the call failed: {:?}", run.error);
    Ok(run)
}

/// Records of machines that belong to sandboxes.
fn machines(data_dir: &Path) -> Vec<u64> {
    crate::memory::pids(&data_dir.join("store/sandboxes"))
}

/// Processes of zygotes.
fn zygotes(data_dir: &Path) -> Vec<u64> {
    crate::memory::pids(&data_dir.join("store/zygotes"))
}
