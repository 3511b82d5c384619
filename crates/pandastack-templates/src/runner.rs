//! Schedules builds, and recovers them after a crash.
//!
//! Builds run on the leader, a few at once. Workspaces take turns; of one workspace, the oldest
//! build is first. A build that was in progress when its server ended is not resumed: it fails, its
//! machines are deleted, and the next build reuses its layers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::templates::{BuildRecord, BuildState};
use pandastack_types::api::BuildFailure;
use pandastack_types::limits::{
    TEMPLATE_BUILD_SECONDS_MAX, TEMPLATE_BUILD_WAIT_SECONDS_MAX, TEMPLATE_BUILDS_AT_ONCE_MAX,
    TEMPLATE_BUILDS_PER_WORKSPACE_AT_ONCE_MAX,
};
use pandastack_types::{Error, Result, WorkspaceId, chain};
use tokio::time::Instant;

use crate::build::{Build, Built};
use crate::build_error::{BuildError, CANCELLED, TOO_LONG};
use crate::log::Log;
use crate::service::{BuildLock, Templates};
use crate::{changes, context, machines, prune, rebuild};

/// Interval at which layers, and builds that were never started, are checked.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Time for a build to continue past its deadline, so that its step fails by itself with its own
/// message.
const GRACE: Duration = Duration::from_secs(30);

/// Runs builds until shutdown.
pub async fn run(templates: Arc<Templates>) {
    let mut prune_timer = tokio::time::interval(PRUNE_EVERY);
    loop {
        tokio::select! {
            () = templates.background.shutdown.cancelled() => return,
            () = templates.work.notified() => {}
            _ = prune_timer.tick() => {
                end_left(&templates).await;
                prune::all(&templates).await;
            }
        }
        if let Err(error) = start_due_builds(&templates).await {
            tracing::warn!(error = %chain(&error), "cannot start template builds; retrying");
        }
    }
}

/// Ends builds that no server runs any more, and builds whose files or start did not arrive in
/// time.
async fn end_left(templates: &Arc<Templates>) {
    let builds = match templates.store.builds_in_progress().await {
        Ok(builds) => builds,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot end interrupted template builds; retrying");
            return;
        }
    };
    for build in builds {
        let id = build.id.clone();
        if let Some((error, phase)) = abort_reason(templates, &build)
            && let Some(_running) = templates.begin(&build)
            && let Err(error) = fail(templates, build, &error, phase).await
        {
            tracing::warn!(
                build = %id, error = %chain(&error),
                "cannot end an interrupted template build; retrying"
            );
        }
    }
}

/// Reason why an unfinished build must end, and its phase.
fn abort_reason(templates: &Templates, build: &BuildRecord) -> Option<(BuildError, &'static str)> {
    let spec = &build.spec;
    match (build.state, &spec.error) {
        // The build was ending, but its machines could not be deleted.
        (BuildState::Running, Some(message)) => {
            let failure = Box::new(spec.failure.clone().unwrap_or_default());
            let phase = if spec.phase == "cancelled" { "cancelled" } else { "failed" };
            Some((BuildError { message: message.clone(), failure }, phase))
        }
        (BuildState::Running, None) => {
            let message = "the server restarted or lost the build; build again, finished steps are cached";
            Some((BuildError::new(message), "failed"))
        }
        (BuildState::Waiting, _) => {
            let waited_max = i64::try_from(TEMPLATE_BUILD_WAIT_SECONDS_MAX).unwrap_or(i64::MAX);
            let since = spec.files_at.unwrap_or(build.created_at);
            let is_late = now().as_second() - since.as_second() > waited_max;
            let uploads = templates.uploads.of(build.id.clone());
            let message = format!("the build was not started within {waited_max} seconds");
            (is_late && uploads.try_lock().is_ok()).then(|| (BuildError::new(message), "failed"))
        }
        _ => None,
    }
}

/// Starts as many builds as may run.
async fn start_due_builds(templates: &Arc<Templates>) -> Result<()> {
    let mut queued = templates.store.builds_in_progress().await?;
    queued.retain(|build| build.state == BuildState::Queued);
    loop {
        let next = next_turn(&queued, &templates.count_running(), &templates.last_starts());
        let Some(index) = next else { return Ok(()) };
        let mut build = queued.remove(index);
        let Some(running) = templates.begin(&build) else { continue };
        {
            let mut turns = templates.last_starts();
            let turn = turns.values().max().map_or(1, |last| last + 1);
            turns.insert(build.workspace.clone(), turn);
        }
        (build.state, build.spec.phase) = (BuildState::Running, "building".to_owned());
        if templates.store.put_build(&build, BuildState::Queued).await? {
            let task = run_build(Arc::clone(templates), build, running);
            templates.background.tasks.spawn(task);
        }
    }
}

/// Next one of the queued builds, oldest first: workspaces take turns, each with a limit of
/// concurrent builds.
fn next_turn(
    queued: &[BuildRecord],
    running: &HashMap<WorkspaceId, usize>,
    turns: &HashMap<WorkspaceId, u64>,
) -> Option<usize> {
    if running.values().sum::<usize>() >= TEMPLATE_BUILDS_AT_ONCE_MAX {
        return None;
    }
    let count = |build: &BuildRecord| running.get(&build.workspace).copied().unwrap_or_default();
    let may_run = |build: &BuildRecord| count(build) < TEMPLATE_BUILDS_PER_WORKSPACE_AT_ONCE_MAX;
    let candidates = queued.iter().enumerate().filter(|(_, build)| may_run(build));
    let next = candidates.min_by_key(|(_, build)| turns.get(&build.workspace).copied().unwrap_or_default());
    next.map(|(index, _)| index)
}

async fn run_build(templates: Arc<Templates>, build: BuildRecord, running: BuildLock) {
    let id = build.id.clone();
    let ended = run_one(&templates, build, &running).await;
    if let Err(error) = ended {
        tracing::error!(
            build = %id, error = %chain(&error),
            "cannot record the end of a template build; retrying"
        );
    }
    drop(running);
}

async fn run_one(templates: &Arc<Templates>, build: BuildRecord, running: &BuildLock) -> Result<()> {
    if let Err(error) = context::prolong(templates, &build).await {
        // If its files are gone when they are needed, the build reports that.
        tracing::warn!(
            build = %build.id, error = %chain(&error),
            "cannot extend the TTL of the machine with the build files"
        );
    }
    let (log, writer) = Log::open(templates, &build).await?;
    fault::point("control.template.begun").await;
    let deadline = Instant::now() + Duration::from_secs(TEMPLATE_BUILD_SECONDS_MAX);
    let start = build.spec.start.clone().unwrap_or_default();
    let work = async {
        let files = context::keep(templates, &build).await?;
        let built = Build::new(templates, &build, &start, &log, deadline)?.run().await?;
        let changes = changes::report(templates, &build, &built, &log, deadline).await?;
        Ok(Built { files, changes, ..built })
    };
    let built = tokio::select! {
        built = tokio::time::timeout_at(deadline + GRACE, work) => {
            Some(built.unwrap_or_else(|_| Err(BuildError::new(TOO_LONG))))
        }
        () = running.stop.cancelled() => None,
    };
    if built.is_none() && templates.background.shutdown.is_cancelled() {
        // The next server process ends it.
        return Ok(());
    }
    let published = match built {
        Some(Ok(built)) => publish(templates, build.clone(), built, &log).await.map_err(BuildError::from),
        Some(Err(error)) => Err(error),
        None => Err(BuildError::new(CANCELLED)),
    };
    let ended = match published {
        Ok(()) => Ok(()),
        Err(error) => {
            let phase = if error.message == CANCELLED { "cancelled" } else { "failed" };
            let line =
                if phase == "failed" { format!("failed: {}", error.message) } else { phase.to_owned() };
            log.write(&line).await;
            fail(templates, build.clone(), &error, phase).await.map(drop)
        }
    };
    drop(log);
    writer.finish().await;
    prune::workspace(templates, &build.workspace).await;
    ended
}

/// Publishes a finished build as a version of its template.
async fn publish(templates: &Arc<Templates>, mut build: BuildRecord, built: Built, log: &Log) -> Result<()> {
    let snapshot = templates.machines.snapshot(&build.workspace, &built.snapshot).await?;
    let spec = &mut build.spec;
    (spec.cpu, spec.memory_mb) = (snapshot.spec.cpu, snapshot.spec.memory_mb);
    spec.size_bytes = snapshot.spec.size_bytes;
    (spec.snapshot, spec.config) = (Some(built.snapshot), built.config);
    (spec.base, spec.base_digest) = (built.base, built.base_digest);
    (spec.files, spec.changes) = (built.files, built.changes);
    (spec.steps, spec.cached_steps) = (Some(built.steps), Some(built.cached_steps));
    (spec.ended_at, spec.phase) = (Some(now()), "done".to_owned());
    let took = now().duration_since(build.created_at).as_millis();
    let (steps, cached) = (built.steps, built.cached_steps);
    log.write(&format!("template {} is ready: {steps} steps, {cached} cached, {took} ms", build.spec.name))
        .await;
    build.state = BuildState::Done;
    if let Some(start) = build.spec.start.take() {
        rebuild::record_recipe(&mut build.spec, start, built.used_files);
    }
    let tags = build.spec.request.tags.clone();
    machines::delete_all(templates, &build.id).await?;
    fault::point("control.template.cleared").await;
    if !templates.store.publish_build(&build, BuildState::Running, &tags).await? {
        return Err(Error::conflict(format!("build `{}` was ended by another request", build.id)));
    }
    fault::point("control.template.published").await;
    Ok(())
}

/// Records why a build ended, and deletes its machines. Returns false, and deletes nothing, if the
/// build's state has changed. The caller holds the lock of [`Templates::begin`].
pub(crate) async fn fail(
    templates: &Templates,
    mut build: BuildRecord,
    error: &BuildError,
    phase: &str,
) -> Result<bool> {
    let before = std::mem::replace(&mut build.state, BuildState::Running);
    build.spec.phase = phase.to_owned();
    (build.spec.error, build.spec.failure) =
        (Some(error.message.clone()), Some(BuildFailure::clone(&error.failure)));
    // Until its machines are deleted, the build has not ended: if that fails, it is retried.
    if !templates.store.put_build(&build, before).await? {
        return Ok(false);
    }
    machines::delete_all(templates, &build.id).await?;
    build.state = BuildState::Failed;
    (build.spec.ended_at, build.spec.start) = (Some(now()), None);
    templates.store.put_build(&build, BuildState::Running).await?;
    templates.notify();
    Ok(true)
}

#[cfg(test)]
mod tests {
    use pandastack_types::{BuildId, TemplateId};

    use super::*;

    fn queued(workspace: &WorkspaceId) -> BuildRecord {
        BuildRecord {
            id: BuildId::random(),
            workspace: workspace.clone(),
            template: TemplateId::random(),
            state: BuildState::Queued,
            created_at: now(),
            spec: Default::default(),
        }
    }

    #[test]
    fn builds_alternate_between_workspaces() {
        let [greedy, other]: [WorkspaceId; 2] = ["greedy", "other"].map(|name| name.parse().unwrap());
        let mut builds: Vec<_> = (0..5).map(|_| queued(&greedy)).collect();
        let none = HashMap::new();
        let one = HashMap::from([(greedy.clone(), 1)]);
        let two = HashMap::from([(greedy.clone(), 2)]);
        assert_eq!(next_turn(&builds, &none, &HashMap::new()), Some(0), "the oldest");
        assert_eq!(next_turn(&builds, &one, &one_turn(&greedy)), Some(0));
        assert_eq!(next_turn(&builds, &two, &one_turn(&greedy)), None, "the rest waits for its own");
        builds.push(queued(&other));
        assert_eq!(next_turn(&builds, &one, &one_turn(&greedy)), Some(5), "it had its turn");
        assert_eq!(next_turn(&builds, &two, &HashMap::new()), Some(5));
        let full = HashMap::from([("a".parse().unwrap(), 2), ("b".parse().unwrap(), 2)]);
        assert_eq!(next_turn(&builds, &full, &HashMap::new()), None);
    }

    fn one_turn(workspace: &WorkspaceId) -> HashMap<WorkspaceId, u64> {
        HashMap::from([(workspace.clone(), 1)])
    }
}
