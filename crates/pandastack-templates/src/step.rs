//! One instruction of a stage.

use std::time::Instant;

use pandastack_dockerfile::{Instruction, RunStep};
use pandastack_fault as fault;
use pandastack_sandboxes::machine::LineSink;
use pandastack_store::clock::now;
use pandastack_types::api::{ExecRequest, StartProcess};

use crate::build::Build;
use crate::build_error::BuildError;
use crate::copy;
use crate::key;
use crate::log::StepLog;
use crate::machines::{self, STEP_TAG};
use crate::mounts::Mounts;
use crate::plan::PlannedStep;
use crate::scope::Scope;
use crate::stage::Head;

/// Outcome of a step.
pub(crate) enum Outcome {
    /// The step changed configuration only.
    Configured,
    /// An earlier build did it.
    Cached,
    /// The step ran.
    Ran,
}

/// Runs an instruction.
pub(crate) async fn run(
    build: &mut Build<'_>,
    head: &mut Head,
    number: usize,
    step: &PlannedStep,
) -> Result<Outcome, BuildError> {
    let log = build.log.step(number, build.total, &step.text).await;
    let began = Instant::now();
    let outcome = execute(build, head, step, &log).await;
    match &outcome {
        Ok(Outcome::Cached) => log.end("CACHED").await,
        Ok(_) => log.end(&format!("DONE {:.1}s", began.elapsed().as_secs_f64())).await,
        Err(error) => log.end(&format!("ERROR: {}", error.message)).await,
    }
    outcome.map_err(|error| error.at_step(number, step))
}

async fn execute(
    build: &mut Build<'_>,
    head: &mut Head,
    step: &PlannedStep,
    log: &StepLog,
) -> Result<Outcome, BuildError> {
    head.no_cache |= step.no_cache;
    if head.scope.configure(&step.instruction, &build.globals)? {
        let state = described(&head.scope)?;
        head.key = key::step(&head.key, &["config", &state]);
        return Ok(Outcome::Configured);
    }
    match &step.instruction {
        Instruction::Run(run) => run_command(build, head, run, step.user.as_deref(), log).await,
        Instruction::Copy(wanted) => copy::run(build, head, wanted).await,
        Instruction::Workdir(_) => make_workdir(build, head).await,
        _ => Err(BuildError::new("this instruction is not supported")),
    }
}

/// Everything in a scope that affects a command.
fn described(scope: &Scope) -> Result<String, BuildError> {
    let seen = (&scope.config, scope.environment());
    serde_json::to_string(&seen).map_err(|error| BuildError::new(error.to_string()))
}

async fn make_workdir(build: &Build<'_>, head: &mut Head) -> Result<Outcome, BuildError> {
    let path = head.scope.config.workdir.clone().unwrap_or_default();
    let key = key::step(&head.key, &["WORKDIR", &path, &described(&head.scope)?]);
    if head.restore(build, &key).await? {
        head.key = key;
        return Ok(Outcome::Cached);
    }
    let user = head.scope.config.user.clone().map(machines::owner_of);
    head.machine(build).await?.make_dir_of(&path, user.as_deref(), build.time_left()?).await?;
    head.save(build, &key, &format!("WORKDIR {path}")).await?;
    head.key = key;
    Ok(Outcome::Ran)
}

async fn run_command(
    build: &mut Build<'_>,
    head: &mut Head,
    run: &RunStep,
    user: Option<&str>,
    log: &StepLog,
) -> Result<Outcome, BuildError> {
    check_network(run)?;
    let mounts = Mounts::of(&head.scope, &run.mounts)?;
    let argv = head.scope.argv(&run.command);
    let text = serde_json::to_string(&argv).map_err(|error| BuildError::new(error.to_string()))?;
    let state = described(&head.scope)?;
    let mounted = mounts.key_parts(build).await?;
    let mounted = mounted.iter().map(String::as_str);
    let parts = ["RUN", text.as_str(), state.as_str()].into_iter().chain(user).chain(mounted);
    let key = key::step(&head.key, &parts.collect::<Vec<_>>());
    if head.restore(build, &key).await? {
        head.key = key;
        return Ok(Outcome::Cached);
    }
    let mut request = command(&head.scope, argv, build.time_left()?.as_secs().max(1));
    if let Some(user) = user {
        request.exec.user = Some(user.to_owned());
    }
    let began = now();
    let exit = mounts.run(build, head, request, log).await?;
    let machine = head.machine(build).await?;
    fault::point("control.template.ran").await;
    if exit.exit_code != 0 || exit.timed_out {
        for line in machine.refused_connections(began).await {
            log.line(&line).await;
        }
        return Err(BuildError::command(&exit));
    }
    head.save(build, &key, &text).await?;
    head.key = key;
    Ok(Outcome::Ran)
}

fn check_network(run: &RunStep) -> Result<(), BuildError> {
    match run.network.as_deref().filter(|network| *network != "default") {
        Some(network) => {
            Err(BuildError::new(format!("RUN --network={network} is not supported; leave it out")))
        }
        None => Ok(()),
    }
}

/// A command as the stage runs it.
pub(crate) fn command(scope: &Scope, argv: Vec<String>, seconds: u64) -> StartProcess {
    StartProcess {
        exec: ExecRequest {
            argv: Some(argv),
            cwd: Some(scope.config.workdir.clone().unwrap_or_else(|| "/".to_owned())),
            env: Some(scope.environment()),
            user: Some(scope.config.user.clone().unwrap_or_else(|| "root".to_owned())),
            timeout_seconds: Some(seconds),
            ..ExecRequest::default()
        },
        tag: Some(STEP_TAG.to_owned()),
        ..StartProcess::default()
    }
}
