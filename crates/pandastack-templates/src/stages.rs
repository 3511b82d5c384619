//! Runs a build: which stages are needed, what each starts from, and the result of the last.

use std::collections::BTreeSet;

use pandastack_dockerfile::{Instruction, Stage};
use pandastack_types::SnapshotId;

use crate::base;
use crate::build::{Build, Built, unknown_stage};
use crate::build_error::BuildError;
use crate::debug;
use crate::key;
use crate::machines::Origin;
use crate::plan::PlannedStep;
use crate::ready;
use crate::stage::Head;
use crate::step::{self, Outcome};

impl Build<'_> {
    /// Runs everything that the target needs.
    pub(crate) async fn run(mut self) -> Result<Built, BuildError> {
        let target = self.target()?;
        let needed = self.needed(target)?;
        self.total = needed.iter().map(|index| 1 + self.stage(*index).steps.len()).sum();
        self.total += self.start.steps.len();
        self.total += usize::from(self.start.start_command.is_some() || self.start.ready.is_some());
        let mut number = 0;
        for index in needed {
            let stage = self.stage(index).clone();
            number += 1;
            let mut head = self.begin(number, &stage, index).await?;
            head.scope.predefine(&self.globals);
            for one in &self.plan(&stage, index == target) {
                number += 1;
                // Instructions that only configure wait for nothing, so nothing else ends them.
                self.time_left()?;
                match step::run(&mut self, &mut head, number, one).await {
                    Ok(Outcome::Cached) => self.cached_steps += 1,
                    Ok(Outcome::Configured | Outcome::Ran) => {}
                    Err(error) => return Err(debug::keep(&self, &head, error).await),
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
        let used_files = self.has_used_files();
        Ok(Built {
            snapshot,
            config: head.scope.config,
            base,
            base_digest: head.base_digest,
            steps: self.total,
            cached_steps: self.cached_steps,
            used_files,
            files: None,
            changes: None,
        })
    }

    /// Steps of a stage. Those of the request follow the stage that is built.
    fn plan(&self, stage: &Stage, is_target: bool) -> Vec<PlannedStep> {
        let own = stage.steps.iter().map(PlannedStep::from);
        let further = self.start.steps.iter().filter(|_| is_target);
        own.chain(further.map(|step| PlannedStep::of(step, self.file.escape))).collect()
    }

    /// Starts the command that new sandboxes find running, and saves the machine.
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
                return Err(debug::keep(self, head, error).await);
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

    /// The stages that a stage needs, and itself, in order: those of copied images first.
    fn needed(&self, target: usize) -> Result<Vec<usize>, BuildError> {
        let (mut needed, mut open) = (BTreeSet::new(), vec![target]);
        while let Some(index) = open.pop() {
            if !needed.insert(index) {
                continue;
            }
            let stage = self.stage(index);
            open.extend(self.earlier(&self.globals.expand(&stage.from)?, index));
            for step in &stage.steps {
                for from in step.instruction.froms() {
                    let found = self.copied_stage(from, index);
                    open.push(found.ok_or_else(|| unknown_stage(from).at(0, Some(step.line), &step.text))?);
                }
            }
        }
        let own = needed.iter().copied().filter(|index| *index < self.file.stages.len());
        let copied = needed.iter().copied().filter(|index| *index >= self.file.stages.len());
        Ok(copied.chain(own).collect())
    }

    /// The flag that names the image of a stage without steps.
    fn names_image(&self, stage: &Stage) -> &'static str {
        let mut steps = self.file.stages.iter().flat_map(|stage| &stage.steps);
        match steps.find(|step| step.line == stage.line).map(|step| &step.instruction) {
            Some(Instruction::Run(_)) => "RUN --mount=from",
            _ => "COPY --from",
        }
    }

    /// Creates the head from which a stage starts.
    async fn begin(&self, number: usize, stage: &Stage, index: usize) -> Result<Head, BuildError> {
        let text = match index < self.file.stages.len() {
            true => format!("FROM {}", stage.from),
            false => format!("{}={}", self.names_image(stage), stage.from),
        };
        let log = self.log.step(number, self.total, &text).await;
        let begun = base::begin(self, stage, index, &log).await;
        match &begun {
            Ok(_) => log.end("DONE").await,
            Err(error) => log.end(&format!("ERROR: {}", error.message)).await,
        }
        begun.map_err(|error| error.at(number, Some(stage.line), &text))
    }
}
