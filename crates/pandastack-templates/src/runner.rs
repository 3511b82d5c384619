//! Whose turn it is, and what is left after a crash.
//!
//! Builds run on the leader, oldest first, a few at once. A build that was under way when its server ended
//! is not taken up again: it fails, its machines go, and the next build finds the layers that it made.

use std::sync::Arc;
use std::time::Duration;

use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::templates::{BuildRecord, BuildState};
use pandastack_types::Result;
use pandastack_types::limits::{
    TEMPLATE_BUILD_SECONDS_MAX, TEMPLATE_BUILD_WAIT_SECONDS_MAX, TEMPLATE_BUILDS_AT_ONCE_MAX,
};
use tokio::time::Instant;

use crate::build::{Build, Built};
use crate::build_error::BuildError;
use crate::log::Log;
use crate::service::{Running, Templates};
use crate::{machines, prune};

/// How often layers, and builds that nobody starts, are looked at.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Runs builds until shutdown.
pub async fn run(templates: Arc<Templates>) {
    if let Err(error) = recover(&templates).await {
        tracing::warn!(%error, "template builds of an earlier server were not ended");
    }
    let mut tidy = tokio::time::interval(TIDY_EVERY);
    loop {
        tokio::select! {
            () = templates.sandboxes.shutdown.cancelled() => return,
            () = templates.work.notified() => {}
            _ = tidy.tick() => {
                if let Err(error) = end_abandoned(&templates).await {
                    tracing::warn!(%error, "template builds that nobody started were not ended");
                }
                prune::all(&templates).await;
            }
        }
        if let Err(error) = take_turns(&templates).await {
            tracing::warn!(%error, "template builds could not be started; trying again");
        }
    }
}

/// Ends what an earlier server left.
async fn recover(templates: &Arc<Templates>) -> Result<()> {
    for build in templates.store.builds_under_way().await? {
        if build.state == BuildState::Running {
            let error = BuildError::new(
                "the server restarted during the build; build again, finished steps are cached",
            );
            fail(templates, build, &error, "failed").await?;
        }
    }
    Ok(())
}

/// Ends builds whose files or start did not come in time.
async fn end_abandoned(templates: &Arc<Templates>) -> Result<()> {
    let waited_max = i64::try_from(TEMPLATE_BUILD_WAIT_SECONDS_MAX).unwrap_or(i64::MAX);
    for build in templates.store.builds_under_way().await? {
        let waited = now().as_second() - build.created_at.as_second();
        if build.state == BuildState::Waiting && waited > waited_max {
            let error = BuildError::new(format!("the build was not started within {waited_max} seconds"));
            fail(templates, build, &error, "failed").await?;
        }
    }
    Ok(())
}

/// Starts as many builds as may run.
async fn take_turns(templates: &Arc<Templates>) -> Result<()> {
    let queued = templates.store.builds_under_way().await?;
    for mut build in queued.into_iter().filter(|build| build.state == BuildState::Queued) {
        if templates.count_running() >= TEMPLATE_BUILDS_AT_ONCE_MAX {
            break;
        }
        let running = templates.begin(&build.id);
        (build.state, build.spec.phase) = (BuildState::Running, "building".to_owned());
        if templates.store.put_build(&build, BuildState::Queued).await? {
            let task = carry_out(Arc::clone(templates), build, running);
            templates.sandboxes.tasks.spawn(task);
        }
    }
    Ok(())
}

async fn carry_out(templates: Arc<Templates>, build: BuildRecord, running: Running) {
    let id = build.id.clone();
    let ended = run_one(&templates, build, &running).await;
    if let Err(error) = ended {
        tracing::error!(build = %id, %error, "a template build's end was not recorded");
    }
    drop(running);
}

async fn run_one(templates: &Arc<Templates>, build: BuildRecord, running: &Running) -> Result<()> {
    let (log, writer) = Log::open(templates, &build.id).await?;
    let deadline = Instant::now() + Duration::from_secs(TEMPLATE_BUILD_SECONDS_MAX);
    let start = build.spec.start.clone().unwrap_or_default();
    let built = tokio::select! {
        built = async { Build::new(templates, &build, &start, &log, deadline)?.run().await } => Some(built),
        () = running.stop.cancelled() => None,
    };
    if built.is_none() && templates.sandboxes.shutdown.is_cancelled() {
        // Its successor ends it.
        return Ok(());
    }
    fault::point("control.template.built").await;
    let ended = match built {
        Some(Ok(built)) => publish(templates, build.clone(), built, &log).await,
        Some(Err(error)) => {
            log.say(&format!("failed: {}", error.message)).await;
            fail(templates, build.clone(), &error, "failed").await
        }
        None => {
            log.say("cancelled").await;
            fail(templates, build.clone(), &BuildError::new("the build was cancelled"), "cancelled").await
        }
    };
    drop(log);
    writer.finish().await;
    prune::workspace(templates, &build.workspace).await;
    ended
}

/// Makes a finished build a version of its template.
async fn publish(templates: &Arc<Templates>, mut build: BuildRecord, built: Built, log: &Log) -> Result<()> {
    let snapshot = templates.sandboxes.store.snapshot(&build.workspace, &built.snapshot).await?;
    let spec = &mut build.spec;
    (spec.cpu, spec.memory_mb) = (snapshot.spec.cpu, snapshot.spec.memory_mb);
    spec.size_bytes = snapshot.spec.size_bytes;
    (spec.snapshot, spec.config, spec.base) = (Some(built.snapshot), built.config, built.base);
    (spec.steps, spec.cached_steps) = (Some(built.steps), Some(built.cached_steps));
    (spec.ended_at, spec.phase) = (Some(now()), "done".to_owned());
    let took = now().duration_since(build.created_at).as_millis();
    let (steps, cached) = (built.steps, built.cached_steps);
    log.say(&format!("template {} is ready: {steps} steps, {cached} cached, {took} ms", build.spec.name))
        .await;
    build.state = BuildState::Done;
    let tags = build.spec.request.tags.clone();
    templates.store.publish_build(&build, BuildState::Running, &tags).await?;
    machines::delete_all(templates, &build.id).await
}

/// Records why a build ended, and deletes its machines.
pub(crate) async fn fail(
    templates: &Templates,
    mut build: BuildRecord,
    error: &BuildError,
    phase: &str,
) -> Result<()> {
    let before = build.state;
    build.state = BuildState::Failed;
    (build.spec.ended_at, build.spec.phase) = (Some(now()), phase.to_owned());
    (build.spec.error, build.spec.failure) = (Some(error.message.clone()), Some(error.failure.clone()));
    templates.store.put_build(&build, before).await?;
    templates.tell();
    machines::delete_all(templates, &build.id).await
}
