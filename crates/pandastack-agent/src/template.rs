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
//!
//! A create may ask for another size than the template's own. Memory cannot be added to a machine that was saved, so each
//! size is a bake of its own ([`Variant`]), made at its first use, and the least recently used sizes are given up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pandastack_engine::Shape;
use pandastack_image::Recipe;
use pandastack_types::agent_api::{AgentTemplate, MachineSize, SandboxSpec, TemplateInfo};
use pandastack_types::api::{Build, BuildStatus, TemplateStatus, TemplateVolume};
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

/// A template in a size: its own, or one that a create asked for.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub recipe: &'static Recipe,
    pub shape: Shape,
}

impl Variant {
    fn find(name: &str, size: Option<MachineSize>) -> Result<Self> {
        let unknown = || AgentError::NoTemplate(name.chars().take(64).collect());
        let recipe = pandastack_image::find(name).ok_or_else(unknown)?;
        let own =
            MachineSize { cpu: recipe.cpu, memory_mb: u32::try_from(recipe.memory_mib).unwrap_or(u32::MAX) };
        let size = size.unwrap_or(own);
        let shape = Shape { vcpus: u8::try_from(size.cpu).unwrap_or(u8::MAX), memory_mib: size.memory_mb };
        Ok(Self { recipe, shape })
    }

    /// Names its directory and its zygote: as the template for the template's own size. No template's name has a `+`.
    pub(crate) fn name(&self) -> String {
        let Shape { vcpus, memory_mib } = self.shape;
        if u32::from(vcpus) == self.recipe.cpu && u64::from(memory_mib) == self.recipe.memory_mib {
            return self.recipe.name.clone();
        }
        format!("{}{vcpus}x{memory_mib}", sizes_prefix(self.recipe))
    }

    /// Directory of all its bakes.
    pub(crate) fn dir(&self, host: &Host) -> PathBuf {
        host.layout.templates(&self.name())
    }
}

/// How the names of a template's other sizes begin.
fn sizes_prefix(recipe: &Recipe) -> String {
    format!("{}+", recipe.name)
}

/// A template that creates can start from.
pub(crate) struct Baked {
    /// Name of the template.
    pub template: String,
    /// [`Variant::name`].
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
        SandboxSpec {
            id,
            incarnation: 0,
            env,
            idle_timeout_seconds: None,
            network: Default::default(),
            volumes: Vec::new(),
        }
    }
}

type Outcome = Option<Result<Arc<Baked>, String>>;

struct Entry {
    build: BuildId,
    outcome: watch::Receiver<Outcome>,
    used: Instant,
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
    pub(crate) async fn ready(
        &self,
        host: &Arc<Host>,
        name: &str,
        size: Option<MachineSize>,
    ) -> Result<Arc<Baked>> {
        let variant = Variant::find(name, size)?;
        let (build, mut outcome) = self.bake(host, variant);
        let hold = Duration::from_secs(limits::BAKE_HOLD_SECONDS);
        match tokio::time::timeout(hold, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(done)) => match done.as_ref() {
                Some(Ok(baked)) => Ok(baked.clone()),
                Some(Err(reason)) => {
                    Err(AgentError::TemplateFailed { name: variant.name(), reason: reason.clone() })
                }
                None => Err(AgentError::Stopping),
            },
            Ok(Err(_)) => Err(AgentError::Stopping),
            Err(_) => {
                let phase = self.build(&build).map(|build| build.phase).unwrap_or_default();
                Err(AgentError::TemplateBaking { name: variant.name(), phase, build })
            }
        }
    }

    /// Begins a bake, or joins the one under way or done.
    pub(crate) fn begin(&self, host: &Arc<Host>, name: &str) -> Result<Build> {
        let (build, _) = self.bake(host, Variant::find(name, None)?);
        self.build(&build)
    }

    fn bake(&self, host: &Arc<Host>, variant: Variant) -> (BuildId, watch::Receiver<Outcome>) {
        let name = variant.name();
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get_mut(&name) {
            entry.used = Instant::now();
            let failed = matches!(*entry.outcome.borrow(), Some(Err(_)));
            if !failed {
                return (entry.build.clone(), entry.outcome.clone());
            }
        }
        let (report, outcome) = watch::channel(None);
        let build = BuildId::random();
        self.record(Build {
            id: build.clone(),
            name: name.clone(),
            status: BuildStatus::Running,
            phase: "starting".to_owned(),
            error: None,
            started_at: Timestamp::now(),
            ended_at: None,
            log: Vec::new(),
        });
        let entry = Entry { build: build.clone(), outcome: outcome.clone(), used: Instant::now() };
        entries.insert(name, entry);
        drop(entries);
        let (host, id) = (host.clone(), build.clone());
        host.tasks.clone().spawn(async move {
            let baked =
                bake::bake(&host, variant, &id).await.map(Arc::new).map_err(|error| error.to_string());
            host.templates.finish(&id, baked.as_ref().err().cloned());
            if let Ok(baked) = &baked {
                host.zygotes.make_behind(&host, baked);
            }
            report.send_replace(Some(baked));
            host.templates.give_up_sizes(&host, variant.recipe).await;
            host.changed.notify_one();
        });
        (build, outcome)
    }

    /// Removes what was baked of a template's sizes beyond those used last. Machines made of them keep what they need by
    /// hard link.
    async fn give_up_sizes(&self, host: &Host, recipe: &Recipe) {
        let prefix = sizes_prefix(recipe);
        let dirs = std::fs::read_dir(host.layout.templates("")).into_iter().flatten().flatten();
        let names = dirs.map(|dir| dir.file_name().to_string_lossy().into_owned());
        let given_up = {
            let mut entries = lock(&self.entries);
            let sizes = names.filter(|name| name.starts_with(&prefix)).map(|name| {
                let entry = entries.get(&name);
                let settled = entry.is_none_or(|entry| entry.outcome.borrow().is_some());
                Size { used: entry.map(|entry| entry.used), settled, name }
            });
            let given_up = beyond(sizes.collect(), limits::TEMPLATE_SIZES_MAX);
            for name in &given_up {
                entries.remove(name);
            }
            given_up
        };
        for name in given_up {
            tracing::info!(size = name, "gives up a size that was not used for longest");
            host.zygotes.remove(host, &name).await;
            host.remove_dir(host.layout.templates(&name)).await;
        }
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

/// A size of a template that is on disk.
struct Size {
    name: String,
    /// `None` of one that a predecessor baked and nobody used since.
    used: Option<Instant>,
    /// Not being baked.
    settled: bool,
}

/// Sizes to give up so that `max` are left: those not used for longest.
fn beyond(mut sizes: Vec<Size>, max: usize) -> Vec<String> {
    sizes.sort_by_key(|size| std::cmp::Reverse(size.used));
    sizes.into_iter().skip(max).filter(|size| size.settled).map(|size| size.name).collect()
}

fn build_phase_at_end(ok: bool) -> &'static str {
    if ok { "ready" } else { "failed" }
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
        volume: recipe
            .volume
            .as_ref()
            .map(|volume| TemplateVolume { path: volume.path.clone(), size_mb: volume.size_mb }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_used_last_are_kept() {
        let began = Instant::now();
        let size = |name: &str, used: Option<u64>, settled| Size {
            name: name.to_owned(),
            used: used.map(|seconds| began + Duration::from_secs(seconds)),
            settled,
        };
        let sizes = || {
            vec![
                size("found", None, true),
                size("old", Some(1), true),
                size("new", Some(9), true),
                size("baking", Some(0), false),
                size("middle", Some(5), true),
            ]
        };
        assert_eq!(beyond(sizes(), 5), Vec::<String>::new());
        assert_eq!(beyond(sizes(), 4), ["found"]);
        assert_eq!(beyond(sizes(), 2), ["old", "found"], "what is being baked stays");
    }

    #[test]
    fn a_size_has_a_name_of_its_own_unless_it_is_the_templates() {
        let name = |size: Option<(u32, u32)>| {
            let size = size.map(|(cpu, memory_mb)| MachineSize { cpu, memory_mb });
            Variant::find("base", size).map(|variant| variant.name()).unwrap_or_default()
        };
        assert_eq!(name(None), "base");
        assert_eq!(name(Some((1, 512))), "base");
        assert_eq!(name(Some((2, 2048))), "base+2x2048");
    }
}
