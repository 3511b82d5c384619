//! Templates on this host: which are baked, and how one becomes so.
//!
//! ```text
//!  unbaked --first create, or bake call--> baking --ok--> ready
//!     ^                                       |
//!     +----------- next create --- failed <---+
//! ```
//!
//! A bake is single flight: everyone who asks meanwhile waits for the same one. A template is known by the key of
//! everything that goes into it (image, kernel, guest program, engine, shape), so a changed recipe or a new version of
//! the platform bakes afresh and an unchanged one is found again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pandastack_engine::Shape;
use pandastack_image::Recipe;
use pandastack_types::agent_api::{AgentTemplate, SandboxSpec, TemplateInfo};
use pandastack_types::api::{Build, BuildStatus, TemplateStatus};
use pandastack_types::{BuildId, SandboxId, limits};
use tokio::sync::watch;

use crate::bake;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::snapshot::Snapshot;

/// Builds remembered; older ones are forgotten.
const BUILDS_MAX: usize = 64;
/// Log lines kept of one build; the oldest go first.
const BUILD_LOG_LINES_MAX: usize = 2_000;

/// A template that creates can start from.
pub(crate) struct Baked {
    pub name: String,
    /// Hash of everything that went into it.
    pub key: String,
    pub snapshot: Snapshot,
    /// What users run first; a zygote runs it ahead of them.
    pub warm_commands: Vec<String>,
}

impl Baked {
    /// Stands in for a sandbox while a zygote is warmed.
    pub(crate) fn warm_spec(&self) -> SandboxSpec {
        let env = BTreeMap::new();
        let id = SandboxId::random();
        SandboxSpec { id, incarnation: 0, env, idle_timeout_seconds: None, network: Default::default() }
    }
}

type Outcome = Option<Result<Arc<Baked>, String>>;

struct Entry {
    build: BuildId,
    outcome: watch::Receiver<Outcome>,
}

/// The templates of a host.
pub(crate) struct Templates {
    entries: Mutex<HashMap<String, Entry>>,
    builds: Mutex<VecDeque<Build>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Templates {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::new(HashMap::new()), builds: Mutex::new(VecDeque::new()) }
    }

    /// The template, baked first if need be. Waits [`limits::BAKE_HOLD_SECONDS`] at most.
    pub(crate) async fn ready(&self, host: &Arc<Host>, name: &str) -> Result<Arc<Baked>> {
        let recipe = recipe(name)?;
        let (build, mut outcome) = self.bake(host, recipe);
        let hold = Duration::from_secs(limits::BAKE_HOLD_SECONDS);
        match tokio::time::timeout(hold, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(done)) => match done.as_ref() {
                Some(Ok(baked)) => Ok(baked.clone()),
                Some(Err(reason)) => {
                    Err(AgentError::TemplateFailed { name: recipe.name.clone(), reason: reason.clone() })
                }
                None => Err(AgentError::Stopping),
            },
            Ok(Err(_)) => Err(AgentError::Stopping),
            Err(_) => {
                let phase = self.build(&build).map(|build| build.phase).unwrap_or_default();
                Err(AgentError::TemplateBaking { name: recipe.name.clone(), phase, build })
            }
        }
    }

    /// Begins a bake, or joins the one under way or done.
    pub(crate) fn begin(&self, host: &Arc<Host>, name: &str) -> Result<Build> {
        let (build, _) = self.bake(host, recipe(name)?);
        self.build(&build)
    }

    fn bake(&self, host: &Arc<Host>, recipe: &'static Recipe) -> (BuildId, watch::Receiver<Outcome>) {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(&recipe.name) {
            let failed = matches!(*entry.outcome.borrow(), Some(Err(_)));
            if !failed {
                return (entry.build.clone(), entry.outcome.clone());
            }
        }
        let (report, outcome) = watch::channel(None);
        let build = BuildId::random();
        self.record(Build {
            id: build.clone(),
            name: recipe.name.clone(),
            status: BuildStatus::Running,
            phase: "starting".to_owned(),
            error: None,
            started_at: Timestamp::now(),
            ended_at: None,
            log: Vec::new(),
        });
        entries.insert(recipe.name.clone(), Entry { build: build.clone(), outcome: outcome.clone() });
        drop(entries);
        let (host, id) = (host.clone(), build.clone());
        host.tasks.clone().spawn(async move {
            let baked = bake::bake(&host, recipe, &id).await.map(Arc::new).map_err(|error| error.to_string());
            host.templates.finish(&id, baked.as_ref().err().cloned());
            if let Ok(baked) = &baked {
                host.zygotes.make_behind(&host, baked);
            }
            report.send_replace(Some(baked));
            host.changed.notify_one();
        });
        (build, outcome)
    }

    /// Every template of the catalogue, for control.
    pub(crate) fn list(&self) -> Vec<AgentTemplate> {
        let entries = lock(&self.entries);
        let describe = |recipe: &Recipe| {
            let outcome = entries.get(&recipe.name).map(|entry| entry.outcome.borrow().clone());
            let (status, size_bytes, error) = match outcome {
                None => (TemplateStatus::Unbaked, 0, None),
                Some(None) => (TemplateStatus::Baking, 0, None),
                Some(Some(Ok(baked))) => (TemplateStatus::Ready, baked.snapshot.size_bytes(), None),
                Some(Some(Err(reason))) => (TemplateStatus::Failed, 0, Some(reason)),
            };
            AgentTemplate { template: info(recipe), status, size_bytes, error }
        };
        pandastack_image::catalog().iter().map(describe).collect()
    }

    pub(crate) fn builds(&self) -> Vec<Build> {
        lock(&self.builds).iter().rev().cloned().collect()
    }

    pub(crate) fn build(&self, id: &BuildId) -> Result<Build> {
        lock(&self.builds)
            .iter()
            .find(|build| build.id == *id)
            .cloned()
            .ok_or_else(|| AgentError::NoBuild(id.clone()))
    }

    /// Notes what a build does now.
    pub(crate) fn progress(&self, id: &BuildId, phase: &str, line: String) {
        tracing::info!(build = %id, phase, "{line}");
        if let Some(build) = lock(&self.builds).iter_mut().find(|build| build.id == *id) {
            build.phase = phase.to_owned();
            if build.log.len() == BUILD_LOG_LINES_MAX {
                build.log.remove(0);
            }
            build.log.push(line);
        }
    }

    fn finish(&self, id: &BuildId, error: Option<String>) {
        if let Some(error) = &error {
            tracing::error!(build = %id, error, "a template could not be built");
        }
        if let Some(build) = lock(&self.builds).iter_mut().find(|build| build.id == *id) {
            build.status = if error.is_none() { BuildStatus::Done } else { BuildStatus::Failed };
            build.phase = build_phase_at_end(error.is_none()).to_owned();
            build.error = error;
            build.ended_at = Some(Timestamp::now());
        }
    }

    fn record(&self, build: Build) {
        let mut builds = lock(&self.builds);
        if builds.len() == BUILDS_MAX {
            builds.pop_front();
        }
        builds.push_back(build);
    }
}

fn build_phase_at_end(ok: bool) -> &'static str {
    if ok { "ready" } else { "failed" }
}

fn recipe(name: &str) -> Result<&'static Recipe> {
    pandastack_image::find(name).ok_or_else(|| AgentError::NoTemplate(name.chars().take(64).collect()))
}

/// Processors and memory of a template's machines.
pub(crate) fn shape(recipe: &Recipe) -> Shape {
    Shape {
        vcpus: u8::try_from(recipe.cpu).unwrap_or(u8::MAX),
        memory_mib: u32::try_from(recipe.memory_mib).unwrap_or(u32::MAX),
    }
}

/// Directory of all bakes of a template.
pub(crate) fn templates_dir(host: &Host, recipe: &Recipe) -> PathBuf {
    host.layout.templates(&recipe.name)
}

fn info(recipe: &Recipe) -> TemplateInfo {
    TemplateInfo {
        name: recipe.name.clone(),
        aliases: recipe.aliases.clone(),
        label: recipe.name.clone(),
        description: recipe.description.clone(),
        category: recipe.category.clone(),
        base: match &recipe.from {
            pandastack_image::recipe::Source::Template(parent) => parent.clone(),
            pandastack_image::recipe::Source::Debian(suite) => format!("debian {suite}"),
        },
        tools: recipe.tools.clone(),
        cpu: recipe.cpu,
        memory_mb: u32::try_from(recipe.memory_mib).unwrap_or(u32::MAX),
    }
}
