//! One build: what it has to do, the heads of its stages, and the results of earlier builds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pandastack_dockerfile::{Dockerfile, Instruction, Stage, Step, parse};
use pandastack_store::clock::now;
use pandastack_store::templates::{BuildRecord, LayerRecord};
use pandastack_types::SnapshotId;
use pandastack_types::api::{ImageConfig, StartBuild, TemplateChanges};
use tokio::time::Instant;

use crate::build_error::{BuildError, TOO_LONG};
use crate::log::Log;
use crate::scope::Globals;
use crate::service::Templates;
use crate::stage::Head;

/// A build in progress.
pub(crate) struct Build<'a> {
    pub(crate) templates: &'a Templates,
    pub(crate) record: &'a BuildRecord,
    pub(crate) start: &'a StartBuild,
    pub(crate) log: &'a Log,
    pub(crate) deadline: Instant,
    pub(crate) globals: Globals,
    /// Steps in all.
    pub(crate) total: usize,
    pub(crate) file: Dockerfile,
    /// Stages of images and templates that only a `COPY --from` or a mount names. Their numbers follow those
    /// of the file.
    pub(crate) copied: Vec<Stage>,
    /// Head of each stage that was begun.
    pub(crate) heads: Vec<Option<Head>>,
    /// Steps that came from an earlier build.
    pub(crate) cached_steps: usize,
    /// Whether anything of the build files was used.
    used_files: AtomicBool,
}

/// The result of a build.
pub(crate) struct Built {
    pub(crate) snapshot: SnapshotId,
    pub(crate) config: ImageConfig,
    pub(crate) base: String,
    /// Digest of the base image, or build of the base template.
    pub(crate) base_digest: Option<String>,
    pub(crate) steps: usize,
    pub(crate) cached_steps: usize,
    /// Whether anything of the build files was used.
    pub(crate) used_files: bool,
    /// Snapshot of the build files, if they are kept.
    pub(crate) files: Option<SnapshotId>,
    /// What a rebuild changed.
    pub(crate) changes: Option<TemplateChanges>,
}

impl<'a> Build<'a> {
    /// Reads the Dockerfile.
    pub(crate) fn new(
        templates: &'a Templates,
        record: &'a BuildRecord,
        start: &'a StartBuild,
        log: &'a Log,
        deadline: Instant,
    ) -> Result<Self, BuildError> {
        let file = parse(&start.dockerfile)?;
        let mut globals = Globals::new(start.args.clone(), file.escape);
        for step in &file.args {
            if let Instruction::Arg(args) = &step.instruction {
                globals
                    .declare(args)
                    .map_err(|error| BuildError::from(error).at(0, Some(step.line), &step.text))?;
            }
        }
        let copied: Vec<Stage> =
            file.copied_images().into_iter().map(|(image, step)| image_stage(image, step)).collect();
        let heads = file.stages.iter().chain(&copied).map(|_| None).collect();
        Ok(Self {
            templates,
            record,
            start,
            log,
            deadline,
            globals,
            total: 0,
            file,
            copied,
            heads,
            cached_steps: 0,
            used_files: AtomicBool::default(),
        })
    }

    /// A stage by its number.
    pub(crate) fn stage(&self, index: usize) -> &Stage {
        let own = &self.file.stages;
        own.get(index).unwrap_or_else(|| &self.copied[index - own.len()])
    }

    /// A stage before another.
    pub(crate) fn earlier(&self, name: &str, than: usize) -> Option<usize> {
        self.file.stage(name).filter(|index| *index < than)
    }

    /// The stage whose files a `COPY --from` or a mount of another stage means.
    pub(crate) fn copied_stage(&self, name: &str, than: usize) -> Option<usize> {
        let copied = || self.copied.iter().position(|stage| stage.from == name);
        self.earlier(name, than).or_else(|| copied().map(|index| self.file.stages.len() + index))
    }

    /// The same in a step that runs: the stage has been built.
    pub(crate) fn stage_of(&self, name: &str) -> Result<usize, BuildError> {
        let found = self.copied_stage(name, self.file.stages.len());
        let built = found.filter(|index| self.heads[*index].is_some());
        built.ok_or_else(|| unknown_stage(name))
    }

    /// Notes that the build depends on its files.
    pub(crate) fn note_files_used(&self) {
        self.used_files.store(true, Ordering::Relaxed);
    }

    /// Whether the build depends on its files.
    pub(crate) fn has_used_files(&self) -> bool {
        self.used_files.load(Ordering::Relaxed)
    }

    /// Head of a started stage.
    pub(crate) fn head(&self, index: usize) -> Result<&Head, BuildError> {
        self.heads[index].as_ref().ok_or_else(|| BuildError::new("a stage is used before it is built"))
    }

    /// Takes the head out, to change it; [`Build::put_head`] returns it.
    pub(crate) fn take_head(&mut self, index: usize) -> Result<Head, BuildError> {
        self.heads[index].take().ok_or_else(|| BuildError::new("a stage is used before it is built"))
    }

    /// Returns a head that was taken out.
    pub(crate) fn put_head(&mut self, index: usize, head: Head) {
        self.heads[index] = Some(head);
    }

    /// The result of an earlier build, if it can be used.
    pub(crate) async fn cached(&self, key: &str) -> Result<Option<LayerRecord>, BuildError> {
        if self.start.no_cache {
            return Ok(None);
        }
        let (store, workspace) = (&self.templates.store, &self.record.workspace);
        let Some(layer) = store.layer(workspace, key).await? else { return Ok(None) };
        let snapshot = self.templates.machines.snapshot(workspace, &layer.snapshot).await;
        let usable = snapshot.is_ok_and(|snapshot| self.templates.machines.is_reachable(&snapshot.host));
        if !usable {
            return Ok(None);
        }
        let layer = LayerRecord { used_at: now(), ..layer };
        store.put_layer(&layer).await?;
        Ok(Some(layer))
    }

    /// Time left until the deadline; an error if there is none.
    pub(crate) fn time_left(&self) -> Result<Duration, BuildError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(BuildError::new(TOO_LONG)),
            false => Ok(left),
        }
    }
}

/// The stage whose files a step uses, which has no steps of its own.
fn image_stage(image: &str, step: &Step) -> Stage {
    Stage { line: step.line, from: image.to_owned(), platform: None, name: None, steps: Vec::new() }
}

/// The error for a stage that does not exist, or not yet.
pub(crate) fn unknown_stage(name: &str) -> BuildError {
    BuildError::new(format!("`{name}` is not an earlier stage of this Dockerfile"))
}
