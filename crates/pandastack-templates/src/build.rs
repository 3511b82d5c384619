//! One build: its required stages, the base of each, and the result of the last.

use std::collections::BTreeSet;
use std::time::Duration;

use pandastack_dockerfile::{Dockerfile, Instruction, Stage, parse};
use pandastack_store::clock::now;
use pandastack_store::templates::{BuildRecord, LATEST, LayerRecord};
use pandastack_types::SnapshotId;
use pandastack_types::api::{ImageConfig, StartBuild};
use tokio::time::Instant;

use crate::build_error::BuildError;
use crate::key;
use crate::log::Log;
use crate::machines::Origin;
use crate::plan::PlannedStep;
use crate::ready;
use crate::scope::Globals;
use crate::service::Templates;
use crate::stage::Head;
use crate::step::{self, Outcome};

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
    file: Dockerfile,
    /// Head of each started stage.
    heads: Vec<Option<Head>>,
    cached: usize,
}

/// The result of a build.
pub(crate) struct Built {
    pub(crate) snapshot: SnapshotId,
    pub(crate) config: ImageConfig,
    pub(crate) base: String,
    pub(crate) steps: usize,
    pub(crate) cached_steps: usize,
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
        let heads = file.stages.iter().map(|_| None).collect();
        Ok(Self { templates, record, start, log, deadline, globals, total: 0, file, heads, cached: 0 })
    }

    /// Runs everything that the target needs.
    pub(crate) async fn run(mut self) -> Result<Built, BuildError> {
        let target = self.target()?;
        let needed = self.needed(target)?;
        self.total = needed.iter().map(|index| 1 + self.file.stages[*index].steps.len()).sum();
        self.total += self.start.steps.len();
        self.total += usize::from(self.start.start_command.is_some() || self.start.ready.is_some());
        let mut number = 0;
        for index in needed {
            let stage = self.file.stages[index].clone();
            number += 1;
            let mut head = self.begin(number, &stage, index).await?;
            head.scope.predefine(&self.globals);
            for one in &self.plan(&stage, index == target) {
                number += 1;
                // Instructions that only configure wait for nothing, so nothing else ends them.
                self.time_left()?;
                match step::run(&mut self, &mut head, number, one).await? {
                    Outcome::Cached => self.cached += 1,
                    Outcome::Configured | Outcome::Ran => {}
                }
            }
            if index != target {
                // Another stage may copy from it; until then it costs no memory.
                head.end_machine(&self).await?;
            }
            self.heads[index] = Some(head);
        }
        let mut head = self.take_head(target)?;
        let base = self.globals.expand(&self.file.stages[target].from)?;
        let snapshot = self.finish(&mut head, number + 1).await?;
        let config = head.scope.config;
        Ok(Built { snapshot, config, base, steps: self.total, cached_steps: self.cached })
    }

    /// Steps of a stage. Those of the request follow the stage that is built.
    fn plan(&self, stage: &Stage, is_target: bool) -> Vec<PlannedStep> {
        let own = stage.steps.iter().map(PlannedStep::from);
        let further = self.start.steps.iter().filter(|_| is_target);
        own.chain(further.map(|step| PlannedStep::of(step, self.file.escape))).collect()
    }

    /// Runs the start command, and snapshots the machine.
    async fn finish(&self, head: &mut Head, number: usize) -> Result<SnapshotId, BuildError> {
        let command = self.start.start_command.as_deref();
        if command.is_none() && self.start.ready.is_none() {
            return match &head.origin {
                Origin::Snapshot(id) => Ok(id.clone()),
                // Nothing but configuration.
                Origin::Template(_) => {
                    let key = key::step(&head.key, &["keep"]);
                    if head.restore(self, &key).await?
                        && let Origin::Snapshot(id) = &head.origin
                    {
                        return Ok(id.clone());
                    }
                    head.save(self, &key, "template").await
                }
            };
        }
        let ready =
            serde_json::to_string(&self.start.ready).map_err(|error| BuildError::new(error.to_string()))?;
        let key = match command {
            Some(command) => key::step(&head.key, &["start", command, &ready]),
            None => key::step(&head.key, &["ready", &ready]),
        };
        let text = command.map_or("ready check".to_owned(), |command| format!("start command: {command}"));
        let log = self.log.step(number, self.total, &text).await;
        if head.restore(self, &key).await?
            && let Origin::Snapshot(id) = &head.origin
        {
            log.end("CACHED").await;
            return Ok(id.clone());
        }
        let scope = head.scope.clone();
        let machine = head.machine(self).await?;
        let started = ready::start(machine, &scope, command, self.start.ready.as_ref(), self.deadline).await;
        match started {
            Ok(()) => log.end("DONE").await,
            Err(error) => {
                log.end(&format!("ERROR: {}", error.message)).await;
                return Err(error);
            }
        }
        head.save(self, &key, "started").await
    }

    /// The requested stage.
    fn target(&self) -> Result<usize, BuildError> {
        match &self.start.target {
            Some(name) => self
                .file
                .stage(name)
                .ok_or_else(|| BuildError::new(format!("the Dockerfile has no stage `{name}`"))),
            None => Ok(self.file.stages.len() - 1),
        }
    }

    /// The stages that a stage needs, and itself, in order.
    fn needed(&self, target: usize) -> Result<BTreeSet<usize>, BuildError> {
        let (mut needed, mut open) = (BTreeSet::new(), vec![target]);
        while let Some(index) = open.pop() {
            if !needed.insert(index) {
                continue;
            }
            let stage = &self.file.stages[index];
            open.extend(self.earlier(&self.globals.expand(&stage.from)?, index));
            for step in &stage.steps {
                if let Instruction::Copy(copy) = &step.instruction
                    && let Some(from) = &copy.from
                {
                    let found = self.earlier(from, index).ok_or_else(|| {
                        let why = format!("`{from}` is not an earlier stage of this Dockerfile");
                        BuildError::new(why).at(0, Some(step.line), &step.text)
                    })?;
                    open.push(found);
                }
            }
        }
        Ok(needed)
    }

    /// A stage before another.
    fn earlier(&self, name: &str, than: usize) -> Option<usize> {
        self.file.stage(name).filter(|index| *index < than)
    }

    /// Creates the head from which a stage starts.
    async fn begin(&self, number: usize, stage: &Stage, index: usize) -> Result<Head, BuildError> {
        let text = format!("FROM {}", stage.from);
        let log = self.log.step(number, self.total, &text).await;
        let begun = self.origin(stage, index).await;
        match &begun {
            Ok(_) => log.end("DONE").await,
            Err(error) => log.end(&format!("ERROR: {}", error.message)).await,
        }
        begun.map_err(|error| error.at(number, Some(stage.line), &text))
    }

    async fn origin(&self, stage: &Stage, index: usize) -> Result<Head, BuildError> {
        let from = self.globals.expand(&stage.from)?;
        if let Some(platform) = stage.platform.as_ref().map(|text| self.globals.expand(text)).transpose()?
            && !["linux/amd64", "linux/x86_64", "linux"].contains(&platform.as_str())
        {
            return Err(BuildError::new(format!(
                "platform `{platform}` is not supported; machines are linux/amd64"
            )));
        }
        if let Some(other) = self.earlier(&from, index) {
            return Ok(self.head(other)?.branch());
        }
        let asked = &self.record.spec.request;
        let size = format!("{:?} {:?}", asked.cpu, asked.memory_mb);
        let (name, tag) = from.split_once(':').unwrap_or((&from, LATEST));
        if tag == LATEST && self.templates.platform.contains(name) {
            let images = self.templates.platform.image_keys(name);
            let images = images.into_iter().collect::<Vec<_>>().join(" ");
            let key = key::base(&["platform", env!("CARGO_PKG_VERSION"), name, &images, &size]);
            return Ok(Head::new(
                key,
                ImageConfig::default(),
                Origin::Template(name.to_owned()),
                self.file.escape,
            ));
        }
        let found = match self.templates.store.template(&self.record.workspace, name).await? {
            Some(template) => self.templates.store.tagged_build(&template.id, tag).await?,
            None => None,
        };
        if let Some(version) = found
            && let Some(snapshot) = version.spec.snapshot
        {
            let differs = |wanted: Option<u32>, own: u32| wanted.is_some_and(|wanted| wanted != own);
            if differs(asked.cpu, version.spec.cpu) || differs(asked.memory_mb, version.spec.memory_mb) {
                return Err(BuildError::new(format!(
                    "template `{from}` has {} vCPU and {} MiB; templates built from it have the same size",
                    version.spec.cpu, version.spec.memory_mb
                )));
            }
            let key = key::base(&["template", version.id.as_str()]);
            return Ok(Head::new(key, version.spec.config, Origin::Snapshot(snapshot), self.file.escape));
        }
        Err(BuildError::new(format!(
            "template `{from}` not found; start from one that `pandastack template list` shows. Images of \
             registries are not supported yet"
        )))
    }

    /// The stage that `COPY --from` names.
    pub(crate) fn stage_of(&self, name: &str) -> Result<usize, BuildError> {
        let found = self.file.stage(name).filter(|index| self.heads[*index].is_some());
        found.ok_or_else(|| BuildError::new(format!("`{name}` is not an earlier stage of this Dockerfile")))
    }

    /// Head of a started stage.
    pub(crate) fn head(&self, index: usize) -> Result<&Head, BuildError> {
        self.heads[index].as_ref().ok_or_else(|| BuildError::new("a stage is used before it is built"))
    }

    /// The same, to change it.
    pub(crate) fn take_head(&mut self, index: usize) -> Result<Head, BuildError> {
        self.heads[index].take().ok_or_else(|| BuildError::new("a stage is used before it is built"))
    }

    /// Returns it.
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

    /// Time left until the deadline.
    pub(crate) fn time_left(&self) -> Result<Duration, BuildError> {
        step::time_left(self.deadline)
    }
}
