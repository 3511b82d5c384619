//! The steps of one deployment, from start to end.
//!
//! ```text
//!   building: build machine, source, install, build, artifact   (skipped when there is an artifact)
//!   deploying: machines, each started and healthy
//!   live: one transaction, then edges ask again, then the old version is left to fall asleep
//! ```
//!
//! A step that does not complete (stopped, failed, or the server ends) needs no undoing of its own:
//! [`crate::prune`] finds and deletes whatever it created, because nothing refers to it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pandastack_fault as fault;
use pandastack_store::StoreError;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_store::clock::now;
use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::BUILD_SECONDS_MAX;
use pandastack_types::{DeploymentId, Error, Result, chain};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::Stop;
use crate::build::Build;
use crate::build_error::BuildError;
use crate::log::Log;
use crate::machine::{self, Machine};
use crate::serve::Serving;
use crate::state::Apps;
use crate::{check, preview_settings, prune};

/// After a switch the old version sleeps once it was idle for this long; requests in progress keep it awake. Sleep ends WebSockets, and
/// their clients ping every 25 or 30 s, so it is twice that.
pub(crate) const DRAIN_IDLE_SECONDS: u64 = 60;
/// Between two tries to write down how a deployment ended, at first and at most.
const END_PAUSE_MIN: Duration = Duration::from_secs(1);
const END_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Works on a deployment until it is live or over. Leaves its state alone when the server ends: the next
/// one continues.
pub(crate) async fn run(apps: Arc<Apps>, deployment: DeploymentRecord, stop: CancellationToken) {
    let id = deployment.id.clone();
    let opened = Log::open(&apps, &deployment).await;
    let Ok((log, writer)) = opened.inspect_err(|error| {
        tracing::warn!(
            deployment = %id, error = %chain(&error),
            "cannot open the deployment log"
        )
    }) else {
        return;
    };
    let mut work = Deploy { apps: Arc::clone(&apps), record: deployment, log };
    let outcome = tokio::select! {
        outcome = work.steps() => Some(outcome),
        () = stop.cancelled() => None,
        () = apps.background.shutdown.cancelled() => return,
    };
    work.end(outcome).await;
    fault::point("control.deploy.ended").await;
    if let Err(error) = prune::app(&apps, &work.record.app).await {
        tracing::warn!(
            deployment = %id, error = %chain(&error),
            "cannot delete unused machines of an app; retrying after its next deployment"
        );
    }
    drop(work);
    writer.finish().await;
}

struct Deploy {
    apps: Arc<Apps>,
    record: DeploymentRecord,
    log: Log,
}

impl Deploy {
    async fn steps(&mut self) -> Result<(), BuildError> {
        let app = self.apps.store.app(None, self.record.app.as_str()).await.map_err(Error::from)?;
        let app = preview_settings::effective(&self.apps, app).await.map_err(Error::from)?;
        self.record.spec.attempts += 1;
        self.set_status(DeploymentStatus::Building).await?;
        fault::point("control.deploy.begun").await;
        check::env_room(&app.spec.env)?;
        if self.record.builds() {
            self.build(&app).await?;
        }
        self.set_status(DeploymentStatus::Deploying).await?;
        fault::point("control.deploy.kept").await;
        let app = match &self.record.spec.start {
            Some(start) => start.source.applied(&app),
            None => app,
        };
        let serving = Serving { apps: &self.apps, app: &app, log: &self.log };
        let machines = serving.machines(&mut self.record).await?;
        fault::point("control.deploy.healthy").await;
        self.switch(&app, machines).await
    }

    async fn build(&mut self, app: &AppRecord) -> Result<(), BuildError> {
        let began = Instant::now();
        let deadline = began + Duration::from_secs(BUILD_SECONDS_MAX);
        let build = Build { apps: &self.apps, app, log: &self.log, deadline };
        let machine = build.machine(&self.record).await?;
        fault::point("control.deploy.machine").await;
        let built = build.run(machine, &self.record).await?;
        fault::point("control.deploy.built").await;
        let spec = &mut self.record.spec;
        spec.git_commit = built.commit.or(spec.git_commit.take());
        spec.framework = Some(built.plan.framework.as_str().to_owned());
        spec.start = Some(built.start);
        spec.artifact = Some(machine::snapshot_built(&built.machine, "built").await?.id);
        fault::point("control.deploy.saved").await;
        self.log.write(format!("built in {:.1} s", began.elapsed().as_secs_f64())).await;
        Ok(())
    }

    /// Writes down where the deployment stands now.
    async fn set_status(&mut self, status: DeploymentStatus) -> Result<(), BuildError> {
        let was = self.record.status;
        self.record.status = status;
        self.record.updated_at = now();
        if !self.apps.store.put_deployment(&self.record, was).await.map_err(Error::from)? {
            return Err(BuildError::Step("the deployment was stopped".to_owned()));
        }
        self.apps.activity.notify();
        Ok(())
    }

    /// Switches requests to the new version.
    async fn switch(&mut self, app: &AppRecord, machines: Vec<Machine>) -> Result<(), BuildError> {
        let before = self.apps.store.app(None, app.id.as_str()).await.map_err(Error::from)?.active;
        if !self.apps.activity.switch(&self.record.id) {
            return Err(BuildError::Step("the deployment was stopped".to_owned()));
        }
        self.record.spec.set_machines(machines.iter().map(|machine| machine.id().clone()));
        self.record.spec.build_machine = None;
        self.record.status = DeploymentStatus::Live;
        self.record.updated_at = now();
        self.record.finished_at = Some(now());
        let replaced = match self.record.spec.trigger.as_str() {
            "rollback" => DeploymentStatus::RolledBack,
            _ => DeploymentStatus::Superseded,
        };
        self.apps.store.go_live(&self.record, replaced).await.map_err(Error::from)?;
        fault::point("control.deploy.switched").await;
        self.apps.names.notify_all();
        self.apps.activity.notify();
        self.log.write("live").await;
        if let Some(before) = before.filter(|before| *before != self.record.id) {
            self.retire(app, &before).await;
        }
        Ok(())
    }

    /// Retires the old version: it gets no new requests, finishes those it has and falls asleep, to
    /// be kept for a rollback. Machines that are too many are not kept, so their requests are
    /// waited for here.
    async fn retire(&self, app: &AppRecord, before: &DeploymentId) {
        let Ok(old) = self.apps.store.deployment(&app.id, before).await else { return };
        let is_surplus = self.record.shares_machines(&old);
        let left = old.spec.machines().filter(|id| !self.record.spec.machines().any(|new| new == *id));
        let retired = left.map(|id| async move {
            let machine = machine::open(self.apps.machines.as_ref(), app, id).await?;
            if is_surplus { machine.sleep().await } else { machine.set_idle(DRAIN_IDLE_SECONDS).await }
        });
        for retired in join_all(retired).await {
            let retired: Result<()> = retired;
            if let Err(error) = retired {
                tracing::info!(
                    app = %app.id, error = %chain(&error),
                    "cannot set the idle timeout of an old machine; retrying later"
                );
            }
        }
    }

    /// Stores the outcome, retrying until it succeeds: no other task works on the deployment, so it would
    /// stay unfinished.
    async fn end(&mut self, outcome: Option<Result<(), BuildError>>) {
        let reason = self.apps.activity.reason(&self.record.id);
        let (status, error) = match (outcome, reason) {
            (Some(Ok(())), _) => return,
            (_, Some(Stop::Canceled)) => (DeploymentStatus::Canceled, "canceled".to_owned()),
            (_, Some(Stop::Superseded)) => {
                (DeploymentStatus::Superseded, "a newer deployment replaced it".to_owned())
            }
            (Some(Err(error)), None) => (DeploymentStatus::Failed, describe_failure(&error)),
            (None, None) => (DeploymentStatus::Canceled, "canceled".to_owned()),
        };
        let mut pause = END_PAUSE_MIN;
        let is_written = loop {
            match self.write_end(status, &error).await {
                Ok(is_written) => break is_written,
                Err(cause) => {
                    tracing::warn!(deployment = %self.record.id, error = %cause, cause = cause.causes(),
                        "cannot record the end of a deployment; retrying in {} s", pause.as_secs());
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(END_PAUSE_MAX),
                // The next process finds it and begins it again.
                () = self.apps.background.shutdown.cancelled() => return,
            }
        };
        if is_written {
            self.log.write(format!("{}: {error}", status.as_str())).await;
        }
    }

    /// Tries to. `false` if it was over already: canceled before it began, deleted with its app, or live although the store said no.
    async fn write_end(&mut self, status: DeploymentStatus, error: &str) -> Result<bool> {
        // Read again: a step that was given up may have been written down after this copy was made.
        let stored = match self.apps.store.deployment(&self.record.app, &self.record.id).await {
            Err(StoreError::NotFound { .. }) => return Ok(false),
            found => found?,
        };
        let was = stored.status;
        let Some(ended) = ended(stored, status, error) else {
            self.apps.names.notify_all();
            return Ok(false);
        };
        if !self.apps.store.put_deployment(&ended, was).await? {
            return Err(Error::conflict("another request changed the deployment; try again"));
        }
        self.record = ended;
        self.apps.activity.notify();
        Ok(true)
    }
}

/// The record of a deployment that ends now; `None` if it ended before, because its record is then right.
fn ended(stored: DeploymentRecord, status: DeploymentStatus, error: &str) -> Option<DeploymentRecord> {
    let mut ended = Some(stored).filter(|stored| stored.status.is_in_progress())?;
    (ended.status, ended.updated_at, ended.finished_at) = (status, now(), Some(now()));
    ended.spec.error = Some(error.to_owned());
    ended.spec.build_machine = None;
    Some(ended)
}

/// Describes a failure for the user, and logs its cause for the operator.
fn describe_failure(error: &BuildError) -> String {
    if let BuildError::Platform(error) = error
        && error.cause.is_some()
    {
        tracing::warn!(error = %chain(&error), "a deployment failed");
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppSpec;

    #[test]
    fn ended_deployments_keep_their_status() {
        use DeploymentStatus as S;
        let app = AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        );
        let stored = |status| DeploymentRecord { status, ..DeploymentRecord::queued(&app, "api", now()) };
        for status in [S::Queued, S::Building, S::Deploying] {
            let ended = ended(stored(status), S::Failed, "no room").unwrap();
            assert_eq!((ended.status, ended.spec.error.as_deref()), (S::Failed, Some("no room")));
            assert!(ended.finished_at.is_some());
        }
        for status in [S::Canceled, S::Superseded, S::Live] {
            assert_eq!(ended(stored(status), S::Failed, "the deployment was stopped"), None, "{status:?}");
        }
    }
}
