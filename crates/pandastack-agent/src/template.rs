//! Templates on this host: tracks which are baked, and bakes them.
//!
//! ```text
//!  unbaked --first create, or bake call--> baking --ok--> ready
//!     ^                                       |
//!     +----------- next create --- failed <---+
//! ```
//!
//! A bake is single flight: concurrent requests wait for the same one. A template is known by the
//! key of everything that goes into it (image, kernel, guest program, engine, shape), so a changed
//! recipe or a new version of the platform bakes afresh and an unchanged one is found again.
//!
//! A create may ask for another size than the template's own. Memory cannot be added to a machine
//! that was saved, so each size is a separate bake ([`Variant`]), made on first use; the least
//! recently used sizes are evicted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pandastack_image::{ImageBuilder, Recipe};
use pandastack_types::agent_api::{AgentTemplate, MachineSize, TemplateInfo};
use pandastack_types::api::{Build, BuildStatus, TemplateStatus, TemplateVolume};
use pandastack_types::{BuildId, limits};
use tokio::sync::watch;

use crate::bake;
use crate::builds::Builds;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::variant::{BakedTemplate, Variant, sizes_prefix};
use crate::zygotes::Zygotes;

type Outcome = Option<Result<Arc<BakedTemplate>, String>>;

struct Entry {
    build: BuildId,
    outcome: watch::Receiver<Outcome>,
    used: Instant,
}

/// The templates of a host.
pub(crate) struct Templates {
    host: Arc<HostResources>,
    zygotes: Arc<Zygotes>,
    entries: Mutex<HashMap<String, Entry>>,
    /// Entries of the catalogue, which do not change.
    catalogue: Vec<(&'static Recipe, TemplateInfo)>,
    pub builds: Arc<Builds>,
}

impl Templates {
    pub(crate) fn new(host: Arc<HostResources>, zygotes: Arc<Zygotes>) -> Arc<Self> {
        let images = ImageBuilder::new(&host.config.cache_dir);
        let catalogue = pandastack_image::catalog().iter().map(|recipe| (recipe, info(recipe, &images)));
        let catalogue = catalogue.collect();
        Arc::new(Self { host, zygotes, entries: Mutex::default(), catalogue, builds: Arc::default() })
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The template, baked first if need be. Waits [`limits::BAKE_HOLD_SECONDS`] at most.
    pub(crate) async fn ready(
        self: &Arc<Self>,
        name: &str,
        size: Option<MachineSize>,
    ) -> Result<Arc<BakedTemplate>> {
        let variant = Variant::find(name, size)?;
        let (build, mut outcome) = self.bake(variant);
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
                let phase = self.builds.get(&build).map(|build| build.phase).unwrap_or_default();
                Err(AgentError::TemplateBaking { name: variant.name(), phase, build })
            }
        }
    }

    /// Starts a bake, or joins the one in progress or done.
    pub(crate) fn begin(self: &Arc<Self>, name: &str) -> Result<Build> {
        let (build, _) = self.bake(Variant::find(name, None)?);
        self.builds.get(&build)
    }

    fn bake(self: &Arc<Self>, variant: Variant) -> (BuildId, watch::Receiver<Outcome>) {
        let name = variant.name();
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&name) {
            entry.used = Instant::now();
            let failed = matches!(*entry.outcome.borrow(), Some(Err(_)));
            if !failed {
                return (entry.build.clone(), entry.outcome.clone());
            }
        }
        let (report, outcome) = watch::channel(None);
        let build = BuildId::random();
        self.builds.add(Build {
            id: build.clone(),
            name: name.clone(),
            status: BuildStatus::Running,
            phase: "starting".to_owned(),
            error: None,
            detail: None,
            started_at: Timestamp::now(),
            ended_at: None,
            log: Vec::new(),
            tags: Vec::new(),
            cached_steps: None,
            steps: None,
            failure: None,
            rebuild_of: None,
            changes: None,
        });
        let entry = Entry { build: build.clone(), outcome: outcome.clone(), used: Instant::now() };
        entries.insert(name, entry);
        drop(entries);
        let (templates, id) = (self.clone(), build.clone());
        self.host.tasks.spawn(async move {
            let baked = bake::bake(&templates.host, variant, &templates.builds, &id).await;
            templates.builds.finish(&id, baked.as_ref().err());
            let baked = baked.map(Arc::new).map_err(|error| error.public_text());
            if let Ok(baked) = &baked {
                templates.zygotes.create_in_background(baked);
            }
            report.send_replace(Some(baked));
            templates.give_up_sizes(variant.recipe).await;
            templates.host.changed.notify_one();
        });
        (build, outcome)
    }

    /// Removes baked sizes of a template beyond the most recently used ones. Machines made from
    /// them keep the files that they need by hard link.
    async fn give_up_sizes(&self, recipe: &Recipe) {
        let prefix = sizes_prefix(recipe);
        let dirs = std::fs::read_dir(self.host.layout.templates("")).into_iter().flatten().flatten();
        let names = dirs.map(|dir| dir.file_name().to_string_lossy().into_owned());
        let given_up = {
            let mut entries = self.entries();
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
            tracing::info!(size = name, "dropping the least recently used size of a template");
            self.zygotes.remove(&name).await;
            self.host.remove_dir(self.host.layout.templates(&name)).await;
        }
    }

    /// Every template of the catalogue, for control.
    pub(crate) fn list(&self) -> Vec<AgentTemplate> {
        let entries = self.entries();
        let describe = |(recipe, info): &(&Recipe, TemplateInfo)| {
            let outcome = entries.get(&recipe.name).map(|entry| entry.outcome.borrow().clone());
            let (status, size_bytes, error) = match outcome {
                None => (TemplateStatus::Unbaked, 0, None),
                Some(None) => (TemplateStatus::Baking, 0, None),
                Some(Some(Ok(baked))) => (TemplateStatus::Ready, baked.snapshot.size_bytes(), None),
                Some(Some(Err(reason))) => (TemplateStatus::Failed, 0, Some(reason)),
            };
            AgentTemplate { template: info.clone(), status, size_bytes, error }
        };
        self.catalogue.iter().map(describe).collect()
    }
}

/// A size of a template that is on disk.
struct Size {
    name: String,
    /// Time of the last use; `None` for a size that a predecessor baked and that was not used
    /// since.
    used: Option<Instant>,
    /// Whether no bake is in progress.
    settled: bool,
}

/// The least recently used sizes, to evict so that `max` are left.
fn beyond(mut sizes: Vec<Size>, max: usize) -> Vec<String> {
    sizes.sort_by_key(|size| std::cmp::Reverse(size.used));
    sizes.into_iter().skip(max).filter(|size| size.settled).map(|size| size.name).collect()
}

fn info(recipe: &Recipe, images: &ImageBuilder) -> TemplateInfo {
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
        // A recipe whose parent is missing cannot be baked, so nothing is built from it.
        image_key: images.key(recipe).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recently_used_sizes_are_kept() {
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
}
