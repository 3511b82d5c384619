//! The state of a build stage: its key, its configuration, and the machine with its files.

use pandastack_fault as fault;
use pandastack_sandboxes::machine::Machine;
use pandastack_store::clock::now;
use pandastack_store::templates::LayerRecord;
use pandastack_types::SnapshotId;
use pandastack_types::api::ImageConfig;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::machines::{self, Origin};
use crate::prune;
use crate::scope::Scope;

/// A stage after some of its steps.
#[derive(Clone)]
pub(crate) struct Head {
    /// Hash of everything so far.
    pub(crate) key: String,
    /// Variables and configuration.
    pub(crate) scope: Scope,
    /// Origin whose machines have all of the stage's files.
    pub(crate) origin: Origin,
    /// A machine that has them, if one runs.
    pub(crate) machine: Option<Machine>,
    /// Results of earlier builds are not used any more.
    pub(crate) no_cache: bool,
    /// Digest of the image that the files come from, or build of the template.
    pub(crate) base_digest: Option<String>,
}

impl Head {
    pub(crate) fn new(key: String, config: ImageConfig, origin: Origin, escape: char) -> Self {
        let scope = Scope::new(config, escape);
        Self { key, scope, origin, machine: None, no_cache: false, base_digest: None }
    }

    /// The same files for another stage, which gets a machine of its own.
    pub(crate) fn branch(&self) -> Self {
        Self { machine: None, scope: self.scope.branch(), ..self.clone() }
    }

    /// A machine with its files.
    pub(crate) async fn machine(&mut self, build: &Build<'_>) -> Result<&Machine, BuildError> {
        if self.machine.is_none() {
            let made = machines::create(build.templates, build.record, &self.origin, "step").await?;
            self.machine = Some(made);
            fault::point("control.template.machine").await;
        }
        self.machine.as_ref().ok_or_else(|| BuildError::new("the builder machine was lost"))
    }

    /// Continues from the result of an earlier build, if there is one. Its machine, which has older files,
    /// ends.
    pub(crate) async fn restore(&mut self, build: &Build<'_>, key: &str) -> Result<bool, BuildError> {
        if self.no_cache {
            return Ok(false);
        }
        let Some(layer) = build.cached(key).await? else { return Ok(false) };
        self.origin = Origin::Snapshot(layer.snapshot);
        self.end_machine(build).await?;
        Ok(true)
    }

    /// Keeps the machine as the result of a step.
    pub(crate) async fn save(
        &mut self,
        build: &Build<'_>,
        key: &str,
        name: &str,
    ) -> Result<SnapshotId, BuildError> {
        self.save_as(build, &[key.to_owned()], name, &ImageConfig::default()).await
    }

    /// The same, under several keys and with the settings of an image.
    pub(crate) async fn save_as(
        &mut self,
        build: &Build<'_>,
        keys: &[String],
        name: &str,
        config: &ImageConfig,
    ) -> Result<SnapshotId, BuildError> {
        let machine = self.machine(build).await?;
        let snapshot = prune::snapshot(build.templates, machine, name).await?;
        fault::point("control.template.kept").await;
        note(build, &snapshot, keys, config).await?;
        fault::point("control.template.noted").await;
        self.origin = Origin::Snapshot(snapshot.clone());
        Ok(snapshot)
    }

    /// Ends its machine.
    pub(crate) async fn end_machine(&mut self, build: &Build<'_>) -> Result<(), BuildError> {
        if let Some(machine) = self.machine.take() {
            build
                .templates
                .machines
                .delete(machine.record, Some("its template build needs it no more"))
                .await?;
        }
        Ok(())
    }
}

/// Records a snapshot as a layer, under each of its keys.
pub(crate) async fn note(
    build: &Build<'_>,
    snapshot: &SnapshotId,
    keys: &[String],
    config: &ImageConfig,
) -> Result<(), BuildError> {
    for key in keys {
        let layer = LayerRecord {
            workspace: build.record.workspace.clone(),
            key: key.clone(),
            snapshot: snapshot.clone(),
            used_at: now(),
            config: config.clone(),
        };
        build.templates.store.put_layer(&layer).await?;
    }
    Ok(())
}
